"""Answers a question with evidence, or refuses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from scopegate.answering.draft import Draft, Spent
from scopegate.answering.extractive import extract
from scopegate.answering.own_word import OwnWord
from scopegate.answering.shapes import Json, Lines, Shape
from scopegate.domain import Answer, Check, Decision, Delta, GateName, GateStatus, Unavailable, Verdict
from scopegate.gate.confusion import refusal_sentence
from scopegate.gate.gate import Gate
from scopegate.gate.gatekeeper import Gatekeeper, Judged
from scopegate.gate.retrieval import Case
from scopegate.ids import new_id
from scopegate.llm.client import LlmFailed
from scopegate.llm.roles import Llms
from scopegate.settings import Settings

MODEL = "extractive"


class Generation:
    """What generated answers are made with. soft: takes votes on whether a question can be answered."""

    def __init__(self, llms: Llms, soft: Gate, settings: Settings) -> None:
        self._llms = llms
        self._soft = soft
        self._lines = Lines(settings.llm_method)
        self._json = Json(settings.llm_method) if settings.llm_shape == "constrained" else None

    @property
    def free(self) -> Shape:
        """Lines, which need nothing of the LLM's server."""
        return self._lines

    @property
    def shape(self) -> Shape:
        """As the settings say, as far as the LLM's server can hold a reply to a schema."""
        able = self._llms.answerer.capabilities
        return self._json if self._json is not None and able is not None and able.json_schema else self._lines

    def draft(self, check: Check, shape: Shape, options: Mapping[str, Any], *, whole: bool) -> Draft:
        """See Draft."""
        return Draft(self._llms.answerer, shape, check, options, whole=whole)

    def own_word(self, draft: Draft) -> OwnWord:
        """The soft gate that the draft carries."""
        return OwnWord(draft, self._soft, judges=self._llms.judge is self._llms.answerer)


class Answerer:
    """The gatekeeper's verdict and an answer, in one pass where an LLM writes it.

    Without an LLM, the answer is those sentences of the evidence that answer, verbatim.
    """

    def __init__(self, gatekeeper: Gatekeeper, generation: Generation | None = None) -> None:
        self._gatekeeper = gatekeeper
        self._generation = generation

    async def answer(self, check: Check) -> Answer:
        """An answer that cites evidence of its verdict, or a refusal.

        Raises what Gatekeeper.judge raises. The LLM has failed, or is late, wherever its reply is not there in full.
        """
        shape = self._generation.shape if self._generation else None
        async with aclosing(self._events(check, shape, {}, whole=True)) as events:
            async for event in events:
                if isinstance(event, Answer):
                    return event
        raise AssertionError("an answer comes last, always")

    async def stream(self, check: Check) -> AsyncGenerator[Delta | Answer, None]:
        """The answer's text as it comes, none before every gate has passed, and the answer, or refusal, last.

        Raises what Gatekeeper.judge raises; Unavailable too where text has left, and no more of it comes.
        """
        shape = self._generation.shape if self._generation else None
        async with aclosing(self._events(check, shape, {}, whole=False)) as events:
            async for event in events:
                if not isinstance(event, Spent):
                    yield event

    def chat(
        self, check: Check, options: Mapping[str, Any], *, whole: bool
    ) -> AsyncGenerator[Delta | Spent | Answer, None]:
        """The same for chat: in the free shape, with a client's options, and Spent before an answer of the LLM.

        Spent comes before a refusal too, where the client's limit left nothing of an answer.
        whole: whether the client wants it in one piece; then it is as in `answer`. options: fields of the OpenAI
        protocol; max_tokens counts the answer alone, roughly.
        """
        return self._events(check, self._generation.free if self._generation else None, options, whole=whole)

    async def _events(
        self, check: Check, shape: Shape | None, options: Mapping[str, Any], *, whole: bool
    ) -> AsyncGenerator[Delta | Spent | Answer, None]:
        end = self._gatekeeper.end_of(check)
        if self._generation is None or shape is None:
            for event in _extracted(await self._gatekeeper.judge(check, end), MODEL):
                yield event
            return
        async with self._generation.draft(check, shape, options, whole=whole) as draft:
            judged = await self._gatekeeper.judge(check, end, self._generation.own_word(draft))
            if judged.case is None or not await _speaks(draft, judged.verdict, judged.case, end):
                if draft.cut_short and judged.verdict.decision is Decision.REFUSAL:
                    yield draft.spent
                for event in _extracted(judged, draft.model):
                    yield event
                return
            text = ""
            try:
                async with aclosing(draft.texts(end)) as pieces:
                    async for piece in pieces:
                        text += piece
                        yield Delta(piece)
            except LlmFailed as error:
                raise Unavailable(f"the answer broke off: {error}") from error
            except TimeoutError as error:
                raise Unavailable("the answer broke off: it ran past the deadline") from error
            yield draft.spent
            yield Answer(
                new_id(), Decision.ANSWER, text, draft.reason, None, draft.evidence, judged.verdict, draft.model
            )


async def _speaks(draft: Draft, verdict: Verdict, case: Case, end: float) -> bool:
    """Whether the draft is the answer: after a pass, if it was its own; where a refusal is not enforced, if it can."""
    if verdict.decision is Decision.REFUSAL:
        return False
    if not verdict.would_refuse:
        return all(result.status is GateStatus.OK for result in verdict.gates if result.gate is GateName.SOFT)
    try:
        async with asyncio.timeout(end - time.perf_counter()):
            return (await draft.judged(case)).passed
    except (LlmFailed, TimeoutError):
        return False


def _extracted(judged: Judged, model: str) -> Iterator[Delta | Answer]:
    """The refusal, or sentences of the evidence. model: who would have answered."""
    verdict, case = judged.verdict, judged.case
    if verdict.decision is Decision.REFUSAL:
        yield _refusal(verdict, verdict.reason, model)
    elif case is None or not verdict.evidence:
        yield _refusal(verdict, "There is no evidence to answer from.", model)
    else:
        evidence, reason = extract(case.question, verdict.evidence, case.rarity, judged.places)
        text = ""
        for cited in evidence:
            piece = f" {cited.text}" if text else cited.text
            text += piece
            yield Delta(piece)
        yield Answer(new_id(), Decision.ANSWER, text, reason, None, evidence, verdict, MODEL)


def _refusal(verdict: Verdict, reason: str, model: str) -> Answer:
    if verdict.confusion is not None:
        sentence = refusal_sentence(verdict.confusion)
    else:
        sentence = "I cannot answer this at the moment."
    return Answer(new_id(), Decision.REFUSAL, None, reason, sentence, (), verdict, model)
