"""Database work that whoever waits for it may give up, and that is done whole all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def uncut(work: Coroutine[Any, Any, T]) -> T:
    """The work's result. Where its caller is cancelled, that takes effect once the work has ended."""
    doing = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait((doing,))
        if not doing.cancelled():
            doing.exception()  # of no interest any more
        raise
