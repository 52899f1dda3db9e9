"""The Redis stream of jobs' ids, as a taskiq broker."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from redis.asyncio import Redis
from taskiq import AckableMessage
from taskiq_redis import RedisStreamBroker

_NAME = "scopegate:jobs"
_GROUP = "scopegate:workers"
_BLOCK_MS = 1000
# Messages that are kept at most; each is a job's id.
_MAX_MESSAGES = 100_000


class Stream(RedisStreamBroker):
    """One message at a time for each free hand, since what one worker has fetched no other can have.

    The base class looks for messages of dead workers only after a new one, and cannot be told to end.
    Raises ValueError for a URL that makes no sense.
    """

    def __init__(self, url: str, reclaim_s: float, timeout_s: float) -> None:
        super().__init__(
            url,
            queue_name=_NAME,
            consumer_group_name=_GROUP,
            consumer_id="0",
            maxlen=_MAX_MESSAGES,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
        )
        self.closing = False
        self._reclaim_ms = round(reclaim_s * 1000)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Messages that dead workers have left, and new ones."""
        async with Redis(connection_pool=self.connection_pool) as redis:
            while not self.closing:
                for key, fields in await self._left(redis) or await self._new(redis):
                    yield AckableMessage(data=fields[b"data"], ack=self._ack_generator(id=key, queue_name=_NAME))

    async def _left(self, redis: Redis) -> list[tuple[Any, Any]]:
        found: Any = await redis.xautoclaim(_NAME, _GROUP, self.consumer_name, min_idle_time=self._reclaim_ms, count=1)
        return list(found[1])

    async def _new(self, redis: Redis) -> list[tuple[Any, Any]]:
        found: Any = await redis.xreadgroup(_GROUP, self.consumer_name, {_NAME: ">"}, count=1, block=_BLOCK_MS)
        return [message for _, messages in found or () for message in messages]
