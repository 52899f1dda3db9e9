"""One LLM: asked with turns, answers with texts, or with a stream of pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from scopegate.domain import Overloaded
from scopegate.llm.asks import Ask, LlmAway, LlmFailed, Piece, Reply, Usage, by_id, ending
from scopegate.llm.capabilities import Capabilities, find_out
from scopegate.llm.server import Server
from scopegate.probe_file import ProbeFile

__all__ = ["Ask", "Llm", "LlmAway", "LlmFailed", "Piece", "Reply", "Usage", "by_id", "ending"]


class Llm:
    """A model on a server, once it is found out what that can do.

    model: None until then where none is set; it is the first that the server lists. capabilities: None until then.
    At most `concurrency` requests are in flight and `queue` more wait; each may take timeout_s once it is in flight.
    """

    def __init__(
        self,
        url: str,
        model: str | None,
        key: str | None,
        *,
        concurrency: int,
        queue: int,
        retries: int,
        timeout_s: float = 120.0,
    ) -> None:
        self.model = model
        self.capabilities: Capabilities | None = None
        self.waits_for = "no reply has come so far"
        self._server = Server(url, key, connections=concurrency, retries=retries, timeout_s=timeout_s)
        self._permits = asyncio.Semaphore(concurrency)
        self._waiting = 0
        self._queue = queue

    async def find_out(self, probe: ProbeFile | None) -> None:
        """Finds out what the server can do, and so that it is there. Raises LlmFailed where it is not."""
        try:
            model = self.model or await self._server.first_model()
            self.capabilities = await find_out(self._server, model, probe)
        except LlmFailed as error:
            self.waits_for = str(error)
            raise
        self.model = model

    async def complete(self, ask: Ask) -> Reply:
        """The whole reply. Raises LlmFailed, or Overloaded where too many requests wait already."""
        model, capabilities = self._found_out()
        if ask.n > 1 and not capabilities.several:
            return await self._one_by_one(ask)
        async with self._permit():
            return await self._server.complete(model, ask)

    @asynccontextmanager
    async def stream(self, ask: Ask) -> AsyncIterator[AsyncIterator[Piece]]:
        """The reply as it comes; leaving the context cancels what is left of it. Raises what complete raises."""
        model, _ = self._found_out()
        async with self._permit(), self._server.stream(model, ask) as pieces:
            yield pieces

    async def close(self) -> None:
        """Closes its connections."""
        await self._server.close()

    def _found_out(self) -> tuple[str, Capabilities]:
        if self.model is None or self.capabilities is None:
            raise LlmAway(f"the LLM has not answered yet: {self.waits_for}")
        return self.model, self.capabilities

    async def _one_by_one(self, ask: Ask) -> Reply:
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self.complete(one)) for one in singles(ask)]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return joined([task.result() for task in asked])

    @asynccontextmanager
    async def _permit(self) -> AsyncIterator[None]:
        if self._permits.locked() and self._waiting >= self._queue:
            raise Overloaded("more requests wait for the LLM than the service accepts; try again")
        self._waiting += 1
        try:
            await self._permits.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._permits.release()


def singles(ask: Ask) -> list[Ask]:
    """A request for each of n replies, with a seed of its own, or they would all be the same."""
    seeds = [None if ask.seed is None else ask.seed + number for number in range(ask.n)]
    return [replace(ask, n=1, seed=seed) for seed in seeds]


def joined(replies: list[Reply]) -> Reply:
    """Replies to the same request as one."""
    usages = [reply.usage for reply in replies if reply.usage is not None]
    cached = [usage.cached for usage in usages]
    usage = Usage(
        sum(usage.prompt for usage in usages),
        sum(usage.completion for usage in usages),
        None if None in cached else sum(count or 0 for count in cached),
    )
    texts = tuple(reply.texts[0] for reply in replies)
    return Reply(texts, tuple(reply.cut[0] for reply in replies), replies[0].first, usage if usages else None)
