"""Tells workers that there is a job: within the process, or through a Redis stream. Truth it is not, SQL is.

A message that is lost costs the few seconds until a worker looks into SQL by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import structlog
from taskiq import AckableMessage, AcknowledgeType, AsyncBroker, InMemoryBroker
from taskiq.receiver import Receiver

from scopegate.domain import Invalid

if TYPE_CHECKING:
    from scopegate.jobs.stream import Stream

log = structlog.get_logger()

# How long Redis may take.
REDIS_S = 5.0
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
        self._stream = None if redis_url is None else _stream(redis_url, reclaim_s)
        self._broker: AsyncBroker = self._stream or InMemoryBroker()

        async def job(job_id: str) -> None:
            await serve(job_id)

        self._job = self._broker.register_task(job, task_name="scopegate.job")
        self._listening: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[Any]] = set()

    async def tell(self, job_id: str) -> None:
        """Sends a message; a queue that is away is logged, and no error."""
        try:
            async with asyncio.timeout(REDIS_S):
                await self._job.kiq(job_id)
        except Exception as error:  # noqa: BLE001 - whatever the client raises, the job is safe
            log.warning("the job queue is away; workers find the job in SQL", job=job_id, cause=str(error))

    def listen(self) -> None:
        """Begins to take messages."""
        if self._stream is not None:
            self._listening = asyncio.create_task(self._listen(self._stream))

    async def hush(self) -> None:
        """Takes no more messages."""
        if self._stream is not None and self._listening is not None:
            self._stream.closing = True
            self._listening.cancel()
            await asyncio.wait((self._listening,))

    async def close(self) -> None:
        """Closes its connections, once what serve has returned from is acknowledged."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=REDIS_S)
        await self._broker.shutdown()

    async def _listen(self, stream: Stream) -> None:
        """Takes messages for ever; declares stream and group anew where Redis has come back without them."""
        away = False
        while not stream.closing:
            receiver = _Receiver(
                stream, max_async_tasks=self._at_once, ack_type=AcknowledgeType.WHEN_EXECUTED, run_startup=True
            )
            receiver.calls = self._calls
            try:
                await receiver.listen(asyncio.Event())
            except Exception as error:  # noqa: BLE001 - a group of whatever the client raises
                if not away:
                    log.warning("the job queue is away; this worker looks for jobs in SQL", cause=_cause(error))
                away = True
                await asyncio.sleep(_AGAIN_S)


class _Receiver(Receiver):
    """A receiver to which a message that cannot be acknowledged is one that comes again, and no failure.

    calls: those that are being made.
    """

    calls: set[asyncio.Task[Any]]

    async def callback(self, message: bytes | AckableMessage, raise_err: bool = False) -> None:
        """Makes the message's call, and acknowledges it."""
        call = asyncio.current_task()
        assert call is not None  # noqa: S101 - this is a coroutine
        self.calls.add(call)
        call.add_done_callback(self.calls.discard)
        try:
            await super().callback(message, raise_err)
        except Exception as error:  # noqa: BLE001 - whatever the client raises, the job is safe
            log.warning("a message of the job queue could not be acknowledged", cause=str(error))


def _stream(url: str, reclaim_s: float) -> Stream:
    try:
        from scopegate.jobs.stream import Stream
    except ModuleNotFoundError as error:
        raise Invalid("a Redis queue needs the extra: pip install 'scopegate[redis]'") from error
    try:
        return Stream(url, reclaim_s, REDIS_S)
    except ValueError:
        raise Invalid("SCOPEGATE_REDIS_URL must look like redis://host:6379/0") from None


def _cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
