"""Work that ends when its client goes away, and answers that are sent as they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, Generic, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

# What is done sooner is not worth a look at whether the client is still there.
_UNWATCHED_S = 0.05
# Items that are made before the client has taken the first of them.
_AHEAD = 16


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. Raises ClientDisconnect, and cancels the work, where the client goes away first.

    The request's body must have been read.
    """
    loop, doing = asyncio.get_running_loop(), asyncio.current_task()
    watching: asyncio.Task[None] | None = None
    left = False

    async def watch() -> None:
        nonlocal left
        await _left(request)
        if doing is not None:
            left = doing.cancel()

    def begin() -> None:
        nonlocal watching
        watching = loop.create_task(watch())

    later = loop.call_later(_UNWATCHED_S, begin)
    try:
        return await work
    except asyncio.CancelledError:
        if left and doing is not None and not doing.uncancel():
            raise ClientDisconnect from None
        raise
    finally:
        later.cancel()
        if watching is not None:
            watching.cancel()


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


async def begun(request: Request, items: AsyncGenerator[T, None]) -> tuple[T | None, Flow[T]]:
    """The first item, None where there is none, and the flow of the others.

    Raises what the generator raises before its first item; ClientDisconnect where the client goes away before.
    """
    flow = Flow(items)
    try:
        return await unless_gone(request, flow.next()), flow
    except BaseException:
        await flow.close()
        raise


class EventStream(StreamingResponse):
    """Server-sent events; the flow that they are made of ends with the response, however that ends."""

    def __init__(self, events: AsyncIterator[bytes], flow: Flow[Any]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._flow = flow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._flow.close()


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
