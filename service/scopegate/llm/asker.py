"""Asks an LLM in the background: patient with its server, and with a reply that cannot be read, once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, TypeVar

from scopegate.domain import Overloaded, Speaker, Turn
from scopegate.llm.asks import Ask, LlmAway, LlmBroke, LlmDenied, LlmFailed, Reply
from scopegate.llm.client import Llm, joined, singles
from scopegate.llm.replies import Unread
from scopegate.prompts import data, load_prompt

T = TypeVar("T")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 15.0
# As much of a reply as its LLM needs to see what was wrong with it.
_QUOTED = 4_000


@dataclass(frozen=True, slots=True)
class Votes:
    """How often an LLM said yes and no, and how many of its replies could not be read."""

    yes: int
    no: int
    unread: int

    @property
    def verdict(self) -> bool | None:
        """What more than half of all say; None where neither is."""
        half = (self.yes + self.no + self.unread) / 2
        return True if self.yes > half else False if self.no > half else None


class Asker:
    """An LLM as jobs ask it.

    calls: bounds the requests in flight of everybody who shares it. patience_s: how long a server that is away, or has
    no room, is asked again and again.
    """

    def __init__(self, llm: Llm, calls: asyncio.Semaphore, patience_s: float = 60.0) -> None:
        self._llm = llm
        self._calls = calls
        self._patience_s = patience_s
        self._again = load_prompt("again")

    @property
    def model(self) -> str | None:
        """The LLM's model; None until it has answered."""
        return self._llm.model

    async def read(self, ask: Ask, read: Callable[[str], T]) -> T:
        """What read makes of the reply.

        Where it raises Unread, the LLM is told why and asked once more. After that, what was usable in the second reply
        or else in the first is the answer; where nothing was, raises LlmFailed. Raises LlmAway after patience_s, and at
        once where the server denies us: what else the job asks would fare no better.
        """
        text, cut = await self._text(ask)
        try:
            return _read(text, cut, read)
        except Unread as unread:
            first = unread
        text, cut = await self._text(self._mended(ask, text, str(first)))
        try:
            return _read(text, cut, read)
        except Unread as second:
            usable: T | None = first.usable if second.usable is None else second.usable
            if usable is None:
                raise LlmFailed(f"the LLM's reply cannot be used: {second}") from None
            return usable

    async def votes(self, ask: Ask, read: Callable[[str], bool]) -> Votes:
        """How many of the votes say what; see cast."""
        votes = await self.cast(ask, read)
        return Votes(votes.count(True), votes.count(False), votes.count(None))

    async def cast(self, ask: Ask, read: Callable[[str], bool]) -> list[bool | None]:
        """The votes of ask.n replies, in order, from one request; None for one that cannot be read, asked once more.

        Raises LlmFailed, LlmAway as read does, but not for votes that cannot be read.
        """
        votes, text, why = _cast(await self._complete(ask), ask.n, read)
        if unread := votes.count(None):
            mended = replace(self._mended(ask, text, why), n=unread)
            more, _, _ = _cast(await self._complete(mended), unread, read)
            again = iter(more)
            votes = [next(again) if vote is None else vote for vote in votes]
        return votes

    def _mended(self, ask: Ask, text: str, why: str) -> Ask:
        """The request once more, with what came of it and what is wrong with that."""
        said = Turn(Speaker.ASSISTANT, data(text.strip()[:_QUOTED]) or "(nothing)")
        seed = None if ask.seed is None else ask.seed + ask.n
        return replace(ask, turns=(*ask.turns, said, *self._again.render(error=why)), seed=seed)

    async def _text(self, ask: Ask) -> tuple[str, bool]:
        reply = await self._complete(ask)
        return reply.texts[0], reply.cut[0]

    async def _complete(self, ask: Ask) -> Reply:
        """The reply; of a server that says one thing at a time, as many requests as there are replies wanted."""
        able = self._llm.capabilities
        if ask.n > 1 and able is not None and not able.several:
            return joined(await side_by_side([self._patiently(one) for one in singles(ask)]))
        return await self._patiently(ask)

    async def _patiently(self, ask: Ask) -> Reply:
        """The reply of a server that may be away for a while, or fail at a request once: it may be about to go down."""
        wait_s, end, broke = _FIRST_WAIT_S, time.monotonic() + self._patience_s, False
        while True:
            try:
                async with self._calls:
                    return await self._llm.complete(ask)
            except (LlmAway, Overloaded) as error:
                if time.monotonic() + wait_s > end:
                    raise LlmAway(str(error)) from None
            except LlmDenied as error:
                raise LlmAway(f"{error}; look at its URL, model and key") from None
            except LlmBroke:
                if broke:
                    raise
                broke = True
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


async def side_by_side(asking: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What they give, in order; the first that raises ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in asking]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def seed_of(seed: int, *parts: object) -> int:
    """A seed of its own for each purpose, the same for the same parts: 0 to 2^31 - 1."""
    digest = blake2b("\0".join(map(str, (seed, *parts))).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def _read(text: str, cut: bool, read: Callable[[str], T]) -> T:
    if not cut:
        return read(text)
    try:
        return read(text.rpartition("\n")[0])
    except Unread as unread:
        raise Unread(f"it was cut off because it is too long, and {unread}", unread.usable) from None


def _cast(reply: Reply, wanted: int, read: Callable[[str], bool]) -> tuple[list[bool | None], str, str]:
    """As many votes as wanted, the last that cannot be read, and what is wrong with it."""
    votes: list[bool | None] = []
    text, why = "", "it did not come"
    for said, cut in zip(reply.texts[:wanted], reply.cut, strict=False):
        try:
            if cut:
                raise Unread("it was cut off before its last line, so reason more briefly")
            votes.append(read(said))
        except Unread as unread:
            votes.append(None)
            text, why = said, str(unread)
    return [*votes, *[None] * (wanted - len(votes))], text, why
