from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from scopegate.api.streams import Flow, unless_gone


def request(leaves_after_s: float) -> Request:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(leaves_after_s)
        return {"type": "http.disconnect"}

    return Request({"type": "http", "headers": []}, receive)


async def test_work_is_done_while_its_client_waits() -> None:
    assert await unless_gone(request(60), asyncio.sleep(0, "done")) == "done"


async def test_work_ends_with_its_client() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append("cancelled, and waited for")

    with pytest.raises(ClientDisconnect):
        await unless_gone(request(0.01), work())
    assert ended == ["cancelled, and waited for"]


async def test_what_work_raises_is_raised() -> None:
    async def work() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await unless_gone(request(60), work())


async def test_cancelling_the_caller_cancels_the_work() -> None:
    started = asyncio.Event()
    ended = asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    caller = asyncio.ensure_future(unless_gone(request(60), work()))
    await started.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()


class Items:
    """Yields numbers under a timeout, which may only be left by the task that entered it."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count, self.error = count, error
        self.closed = False
        self.made = 0

    async def run(self) -> AsyncGenerator[int, None]:
        try:
            async with asyncio.timeout(30):
                for number in range(self.count):
                    self.made += 1
                    yield number
                if self.error:
                    raise self.error
        finally:
            self.closed = True


async def test_items_come_in_order_though_tasks_take_turns() -> None:
    items = Items(40)
    flow = Flow(items.run())
    assert [await asyncio.ensure_future(flow.next()) for _ in range(41)] == [*range(40), None]
    await flow.close()
    assert items.closed


async def test_an_error_comes_after_the_items_before_it() -> None:
    flow = Flow(Items(1, ValueError("broken")).run())
    assert await flow.next() == 0
    with pytest.raises(ValueError, match="broken"):
        await flow.next()
    await flow.close()


async def test_closing_ends_the_generator_where_it_is() -> None:
    items = Items(10_000)
    flow = Flow(items.run())
    await flow.next()
    await flow.close()
    assert items.closed
    assert items.made < 100
