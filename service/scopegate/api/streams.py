"""Work that ends when its client goes away, and answers that are sent as they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Generic, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")

# Items that are made before the client has taken the first of them.
_AHEAD = 16


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. Raises ClientDisconnect, and cancels the work, where the client goes away first.

    The request's body must have been read.
    """
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        await _ended(leaving)
        await _ended(doing)


class Flow(Generic[T]):
    """An async generator that runs in one task of its own, whoever takes its items.

    So what it holds while it runs, a timeout or a connection, is opened and closed by the same task.
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        given, self._taken = anyio.create_memory_object_stream[T](_AHEAD)
        self._task = asyncio.ensure_future(_run(items, given))

    async def next(self) -> T | None:
        """The next item, None after the last. Raises what the generator raised."""
        try:
            return await self._taken.receive()
        except anyio.EndOfStream:
            await self._task
            return None

    async def close(self) -> None:
        """Ends the generator where it is."""
        await _ended(self._task)
        self._taken.close()


async def _run(items: AsyncGenerator[T, None], given: MemoryObjectSendStream[T]) -> None:
    async with given, contextlib.aclosing(items):
        async for item in items:
            await given.send(item)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _ended(task: asyncio.Future[Any]) -> None:
    """Cancels a task and waits for its end; what it raises now is of no interest any more."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
