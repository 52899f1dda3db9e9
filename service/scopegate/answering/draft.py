"""An answer under way: what the LLM writes on a case, for gates to judge by and for callers to read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import structlog

from scopegate.answering.reply import Reply
from scopegate.answering.shapes import Shape, Unreadable
from scopegate.domain import Check, Confusion, Evidence, ScopegateError, Speaker, Turn
from scopegate.gate.confusion import located, one_line
from scopegate.gate.gate import Judgement
from scopegate.gate.retrieval import Case
from scopegate.gate.slots import turns
from scopegate.llm.client import Ask, Llm, LlmFailed, Usage
from scopegate.prompts import data, plain

log = structlog.get_logger()

_MOST_TOKENS = 1_024
_LIMITS = ("max_completion_tokens", "max_tokens")
_LONGEST_REASON = 1_000
# Of a reply that could not be read, the LLM is shown this many characters.
_LONGEST_SAID = 8_192
# Pieces that have come already are taken without a turn for others, up to so many.
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Spent:
    """What the LLM took for an answer: its tokens, None where it does not say, and whether a limit cut it."""

    usage: Usage | None
    cut: bool


class Draft:
    """Written in a task of its own from when a gate first wants it; cancelled, up to the server, on leaving.

    A reply that cannot be read is asked for once more, with the error named, as long as none of its text can have left:
    until the first of it is there, or until all of it is, where it is wanted whole. options: what a client wants of the
    LLM; its max_tokens counts the answer alone, roughly, and lifts no limit of ours. A reply in lines that a limit cuts
    amid its answer is one, where that was the client's limit, or where text can have left.
    cut_short: whether a client's limit left nothing of an answer.
    """

    def __init__(self, llm: Llm, shape: Shape, check: Check, options: Mapping[str, Any], *, whole: bool) -> None:
        self._llm = llm
        self._shape = shape
        self._check = check
        self._whole = whole
        self._limit = next((options[name] for name in _LIMITS if options.get(name) is not None), None)
        self._options = {name: value for name, value in options.items() if name not in _LIMITS}
        self._reading: tuple[Evidence, ...] = ()
        self._reply = Reply(shape, 0)
        self.cut_short = False
        self._usage: Usage | None = None
        self._writing: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def judged(self, case: Case) -> Judgement:
        """Its own word on whether it can answer: as soon as text may leave, or with why it cannot.

        Raises LlmFailed where there is no reply that can be read, and Overloaded.
        """
        if not case.reading:
            return Judgement(0.0, passed=False)
        self._begin(case)
        await self._until(lambda: self._reply.shown != "" and not self._whole)
        passed = not self._reply.declines
        detail = {"can_answer": passed, "model": self._llm.model, "prompt": self._shape.prompt.id}
        return Judgement(float(passed), passed, detail, None if passed else self._confusion())

    async def texts(self, end: float) -> AsyncGenerator[str, None]:
        """The answer's text as it comes. Raises TimeoutError past end, and as `judged` does.

        end: see Gatekeeper.end_of.
        """
        sent = 0
        while True:
            async with asyncio.timeout(end - time.perf_counter()):
                piece = await self._beyond(sent)
            if not piece:
                return
            sent += len(piece)
            yield piece

    @property
    def model(self) -> str:
        """The LLM's name."""
        return self._llm.model or ""

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What it cites, in order of first citation; what it names as its evidence where its text cites nothing."""
        return tuple(self._reading[label - 1] for label in self._reply.citations or self._reply.written.evidence)

    @property
    def reason(self) -> str:
        """How the answer follows, in the LLM's words."""
        said = one_line(plain(self._reply.written.reasoning), _LONGEST_REASON)
        if not said and self._reply.cut:
            return "The LLM's reply was cut at its limit before it gave a reason."
        return said or "The LLM gave no reason beside its evidence."

    @property
    def spent(self) -> Spent:
        """So far."""
        return Spent(self._usage, self._reply.cut)

    def _begin(self, case: Case) -> None:
        if self._writing is None:
            self._reading = case.reading
            self._writing = asyncio.create_task(self._write(turns(self._shape.prompt, case)))
            self._writing.add_done_callback(lambda _: self._news.set())

    async def _beyond(self, sent: int) -> str:
        """What there is to show after so many characters, empty at the end."""
        await self._until(lambda: len(self._reply.shown) > sent)
        return self._reply.shown[sent:]

    async def _until(self, enough: Callable[[], bool]) -> None:
        """Waits for enough, or for the end of writing; raises what went wrong with it."""
        assert self._writing is not None  # noqa: S101 - every way here begins it
        while not enough() and not self._writing.done():
            self._news.clear()
            await self._news.wait()
        if self._writing.done():
            self._writing.result()

    async def _write(self, asked: tuple[Turn, ...]) -> None:
        """Raises LlmFailed and Overloaded, and nothing else whatever the LLM says."""
        try:
            await self._written(asked)
        except (LlmFailed, ScopegateError):
            raise
        except Exception as error:
            log.exception("a reply broke its reading")
            raise LlmFailed("the LLM's reply could not be read") from error

    async def _written(self, asked: tuple[Turn, ...]) -> None:
        try:
            await self._read(asked)
        except Unreadable as error:
            if self._reply.shown and not self._whole:
                raise LlmFailed(f"the LLM's reply broke its form: {error}") from error
            wrong = f"That reply could not be read: {error}. Answer the question again, in the form that was set."
            said = Turn(Speaker.ASSISTANT, data(self._reply.text[:_LONGEST_SAID]) or "(nothing)")
            try:
                await self._read((*asked, said, Turn(Speaker.USER, wrong)))
            except Unreadable as again:
                raise LlmFailed(f"the LLM's reply could not be read, twice: {again}") from again

    async def _read(self, asked: tuple[Turn, ...]) -> None:
        """Reads a reply to its end.

        Raises Unreadable and LlmFailed, but not once the reply has declined: the rest only says why.
        """
        reply = self._reply = Reply(self._shape, len(self._reading))
        most = min(self._limit or _MOST_TOKENS, _MOST_TOKENS) + self._shape.around
        ask = Ask(asked, most, schema=self._shape.schema(len(self._reading)), options=self._options)
        came = asyncio.Event()
        taking = asyncio.create_task(self._take(ask, reply, came))
        taking.add_done_callback(lambda _: came.set())
        try:
            # All that has come by now is read at once.
            while not taking.done():
                await came.wait()
                came.clear()
                reply.read()
                self._news.set()
            taking.result()
            if not reply.cut:
                reply.finish()
            elif self._limit is not None and not reply.shown:
                self.cut_short = not reply.declines
                raise LlmFailed(
                    f"the LLM's reply was cut at the request's limit, after {most} tokens, without an answer"
                )
            elif ask.schema is not None or not reply.shown or (self._whole and self._limit is None):
                raise Unreadable(f"it was not done after {most} tokens")
        except (LlmFailed, Unreadable):
            if not reply.declines:
                raise
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    async def _take(self, ask: Ask, reply: Reply, came: asyncio.Event) -> None:
        """Raises LlmFailed, and Unreadable where the reply is far too long."""
        at_once = 0
        async with self._llm.stream(ask) as pieces:
            async for piece in pieces:
                self._usage = _sum(self._usage, piece.usage)
                reply.take(piece)
                at_once = at_once + 1 if came.is_set() else 0
                came.set()
                if at_once >= _AT_ONCE:
                    await asyncio.sleep(0)

    def _confusion(self) -> Confusion | None:
        written = self._reply.written
        if written.confusion is None:
            return None
        phrases = [form for phrase in written.phrases for form in (plain(phrase), phrase)]
        explanation = one_line(plain(written.explanation)) or None
        return Confusion(written.confusion, located(phrases, self._check.question), explanation)


def _sum(before: Usage | None, now: Usage | None) -> Usage | None:
    if before is None or now is None:
        return before or now
    cached = None if before.cached is None or now.cached is None else before.cached + now.cached
    return Usage(before.prompt + now.prompt, before.completion + now.completion, cached)
