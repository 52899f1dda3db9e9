"""Tells workers that there is a job: within the process, or through a Redis stream. Truth it is not, SQL is.

A message that is lost costs the few seconds until a worker looks into SQL by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import structlog
from taskiq import AckableMessage, AcknowledgeType, AsyncBroker, InMemoryBroker
from taskiq.receiver import Receiver

from scopegate.domain import Invalid

log = structlog.get_logger()

_STREAM = "scopegate:jobs"
_GROUP = "scopegate:workers"
# Messages that are kept at most; each is a job's id.
_MAX_MESSAGES = 100_000
_BLOCK_S = 1
_REDIS_S = 5
_AGAIN_S = 1

# What this library tells of each message, our own log tells of each job.
logging.getLogger("taskiq").setLevel(logging.CRITICAL)


class Queue:
    """Carries jobs' ids to `serve`. A message is acknowledged when serve returns; one of a worker that died is
    claimed by another after reclaim_s.

    at_once: calls of serve that messages make at the same time. Raises Invalid for a URL that makes no sense, or
    where the Redis client is not installed.
    """

    def __init__(
        self, redis_url: str | None, serve: Callable[[str], Awaitable[None]], *, at_once: int, reclaim_s: float
    ) -> None:
        self._at_once = at_once
        self._broker: AsyncBroker = InMemoryBroker() if redis_url is None else _redis(redis_url, reclaim_s)
        self._between_processes = redis_url is not None

        async def job(job_id: str) -> None:
            await serve(job_id)

        self._job = self._broker.register_task(job, task_name="scopegate.job")
        self._finish = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def tell(self, job_id: str) -> None:
        """Sends a message; a queue that is away is logged, and no error."""
        try:
            async with asyncio.timeout(_REDIS_S):
                await self._job.kiq(job_id)
        except Exception as error:  # noqa: BLE001 - whatever the client raises, the job is safe
            log.warning("the job queue is away; workers find the job in SQL", job=job_id, cause=str(error))

    def listen(self) -> None:
        """Begins to take messages."""
        if self._between_processes:
            self._listening = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Takes no more messages, and closes its connections."""
        self._finish.set()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait((self._listening,))
        await self._broker.shutdown()

    async def _listen(self) -> None:
        """Takes messages for ever; declares stream and group anew where Redis has come back without them."""
        away = False
        while not self._finish.is_set():
            receiver = _Patient(
                self._broker, max_async_tasks=self._at_once, ack_type=AcknowledgeType.WHEN_EXECUTED, run_startup=True
            )
            try:
                await receiver.listen(self._finish)
            except Exception as error:  # noqa: BLE001 - a group of whatever the client raises
                if not away:
                    log.warning("the job queue is away; this worker looks for jobs in SQL", cause=_cause(error))
                away = True
                await asyncio.sleep(_AGAIN_S)


class _Patient(Receiver):
    """A receiver to which a message that cannot be acknowledged is one that comes again, and no failure."""

    async def callback(self, message: bytes | AckableMessage, raise_err: bool = False) -> None:
        """Makes the message's call, and acknowledges it."""
        try:
            await super().callback(message, raise_err)
        except Exception as error:  # noqa: BLE001 - whatever the client raises, the job is safe
            log.warning("a message of the job queue could not be acknowledged", cause=str(error))


def _redis(url: str, reclaim_s: float) -> AsyncBroker:
    try:
        from taskiq_redis import RedisStreamBroker
    except ModuleNotFoundError as error:
        raise Invalid("a Redis queue needs the extra: pip install 'scopegate[redis]'") from error
    try:
        return RedisStreamBroker(
            url,
            queue_name=_STREAM,
            consumer_group_name=_GROUP,
            consumer_id="0",
            maxlen=_MAX_MESSAGES,
            xread_block=_BLOCK_S * 1000,
            xread_count=1,  # what one worker has fetched, no other can
            idle_timeout=round(reclaim_s * 1000),
            unacknowledged_lock_timeout=_REDIS_S,
            socket_timeout=_REDIS_S,
            socket_connect_timeout=_REDIS_S,
        )
    except ValueError:
        raise Invalid("SCOPEGATE_REDIS_URL must look like redis://host:6379/0") from None


def _cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
