"""Answers a question with evidence, or refuses it."""

from __future__ import annotations

from scopegate.answering.extractive import extract
from scopegate.domain import Answer, Check, Decision, Verdict
from scopegate.gate.confusion import refusal_sentence
from scopegate.gate.gatekeeper import Gatekeeper
from scopegate.ids import new_id

MODEL = "extractive"


class Answerer:
    """The gatekeeper's verdict first; then the sentences of the evidence that answer, verbatim."""

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._gatekeeper = gatekeeper

    async def answer(self, check: Check) -> Answer:
        """An answer that cites evidence of its verdict, or a refusal. Raises what Gatekeeper.judge raises."""
        judged = await self._gatekeeper.judge(check, self._gatekeeper.end_of(check))
        verdict, case = judged.verdict, judged.case
        if verdict.decision is Decision.REFUSAL:
            return _refusal(verdict, verdict.reason)
        if case is None or not verdict.evidence:
            return _refusal(verdict, "There is no evidence to answer from.")
        evidence, reason = extract(case.question, verdict.evidence, case.rarity)
        text = " ".join(cited.text for cited in evidence)
        return Answer(new_id(), Decision.ANSWER, text, reason, None, evidence, verdict, MODEL)


def _refusal(verdict: Verdict, reason: str) -> Answer:
    if verdict.confusion is not None:
        sentence = refusal_sentence(verdict.confusion)
    else:
        sentence = "I cannot answer this at the moment."
    return Answer(new_id(), Decision.REFUSAL, None, reason, sentence, (), verdict, MODEL)
