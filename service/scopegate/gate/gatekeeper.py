"""The gatekeeper: asks the gates, cheapest first, and says whether a question may be answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from scopegate.domain import (
    Check,
    Confusion,
    Decision,
    Evidence,
    GateName,
    GateResult,
    GateStatus,
    Invalid,
    Mode,
    OnError,
    Policy,
    Scope,
    ScopegateError,
    Unavailable,
    Verdict,
)
from scopegate.gate.confusion import confusion, located
from scopegate.gate.gate import Gate, GateBroken, Judgement
from scopegate.gate.policy import overridden
from scopegate.gate.retrieval import Case, Retriever
from scopegate.ids import new_id
from scopegate.knowledge import Knowledge, ScopeView
from scopegate.llm.client import LlmFailed, ending

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, the policy it was reached under, and the case; None where nothing could be retrieved.

    places: where a gate found the answer, see Judgement.
    """

    verdict: Verdict
    policy: Policy
    case: Case | None
    places: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Hearing:
    """One question on its way through the gates. end is on the monotonic clock, in seconds."""

    check: Check
    policy: Policy
    gates: Mapping[GateName, Gate]
    view: ScopeView
    end: float
    question: str | None = None
    case: Case | None = None
    results: list[GateResult] = field(default_factory=list)
    refused_by: GateName | None = None
    confusion: Confusion | None = None
    places: Mapping[str, float] = field(default_factory=dict)


class Gatekeeper:
    """Runs a scope's gates over a question, cheapest first, and stops at the first refusal unless asked to explain."""

    def __init__(
        self, knowledge: Knowledge, retriever: Retriever, gates: Sequence[Gate], defaults: Policy, deadline_ms: float
    ) -> None:
        """gates: those that there are. defaults: the policy of a scope that says nothing else."""
        self._knowledge = knowledge
        self._retriever = retriever
        self._gates = {gate.name: gate for gate in gates}
        self._defaults = defaults
        self._deadline_ms = deadline_ms

    def over(self, knowledge: Knowledge) -> Gatekeeper:
        """The same gates, over other knowledge."""
        gates = tuple(self._gates.values())
        return Gatekeeper(knowledge, self._retriever, gates, self._defaults, self._deadline_ms)

    @property
    def available(self) -> tuple[GateName, ...]:
        """The gates that there are, cheapest first."""
        return tuple(name for name in GateName if name in self._gates)

    def policy(self, scope: Scope) -> Policy:
        """What holds in the scope, before a request's overrides."""
        return overridden(self._defaults, scope.policy)

    def require(self, fields: Mapping[str, Any]) -> None:
        """Raises Invalid where policy fields name a gate that is not available here."""
        if missing := [gate for gate in map(GateName, fields.get("gates", ())) if gate not in self._gates]:
            raise Invalid(f"the gate {missing[0].value!r} is not available here: no LLM is set (SCOPEGATE_LLM_URL)")

    def end_of(self, check: Check) -> float:
        """When the check's deadline is, on the monotonic clock in seconds, if it starts now."""
        return time.perf_counter() + (check.deadline_ms or self._deadline_ms) / 1000

    async def check(self, check: Check) -> Verdict:
        """The verdict alone; see judge."""
        return (await self.judge(check, self.end_of(check))).verdict

    async def judge(self, check: Check, end: float, own_word: Gate | None = None) -> Judged:
        """Whether the question may be answered, what each gate saw, and the case.

        end: see end_of. own_word: an answer's that is under way, on whether it can answer. It takes the soft gate's
        place, and is heard though the policy does not ask for that one.
        Raises UnknownScope; Conflict where another embedder made the scope's vectors; Invalid where the passages hold
        too many sentences or a gate asked for is not available; Overloaded, whatever on_error says, since trying again
        helps; Unavailable where the scope is loading, min_revision is not reached in time, or a gate fails under
        on_error 'fail' before any has refused.
        """
        self.require(check.overrides)
        view = await self._view(check, end)
        policy = overridden(self.policy(view.scope), check.overrides)
        own = {GateName.SOFT: own_word} if own_word else {}
        hearing = _Hearing(check, policy, self._gates | own, view, end)
        for name in dict.fromkeys([*policy.gates, *own]):
            if hearing.refused_by is not None and not check.explain:
                threshold = self._threshold(name, hearing)
                hearing.results.append(GateResult(name, None, None, threshold, GateStatus.SKIPPED, 0.0))
                continue
            result = await self._ask(name, hearing)
            hearing.results.append(result)
            if not result.passed and hearing.refused_by is None:
                hearing.refused_by = name
        return Judged(_verdict(hearing), policy, hearing.case, hearing.places)

    async def _view(self, check: Check, end: float) -> ScopeView:
        try:
            async with asyncio.timeout(end - time.perf_counter()):
                return await self._knowledge.view(check.scope, check.min_revision)
        except TimeoutError as error:
            late = f"scope {check.scope!r} did not reach revision {check.min_revision} within the deadline"
            raise Unavailable(late) from error

    async def _ask(self, name: GateName, hearing: _Hearing) -> GateResult:
        """One gate's judgement; one that breaks or is late counts as on_error says."""
        start = time.perf_counter()
        threshold = self._threshold(name, hearing)
        try:
            with ending(hearing.end):
                async with asyncio.timeout(hearing.end - start):
                    judged = await self._judgement(name, hearing)
        except TimeoutError:
            status, cause = GateStatus.DEADLINE, "it ran past the deadline"
        except (GateBroken, LlmFailed) as error:
            log.warning("a gate could not judge", gate=name, cause=str(error))
            status, cause = GateStatus.ERROR, str(error)
        except ScopegateError:
            raise
        except Exception:
            log.exception("a gate broke", gate=name)
            status, cause = GateStatus.ERROR, "it broke"
        else:
            hearing.confusion = hearing.confusion or judged.confusion
            hearing.places = hearing.places or judged.places
            detail = {**judged.detail, **_condensed(hearing)}
            return GateResult(name, judged.passed, judged.score, threshold, GateStatus.OK, _elapsed_ms(start), detail)
        if hearing.policy.on_error is OnError.FAIL and hearing.refused_by is None:
            raise Unavailable(f"the {name} gate gave no judgement: {cause}")
        passed = hearing.policy.on_error is OnError.ANSWER
        return GateResult(name, passed, None, threshold, status, _elapsed_ms(start), {"cause": cause})

    async def _judgement(self, name: GateName, hearing: _Hearing) -> Judgement:
        gate = hearing.gates.get(name)
        if gate is None:
            raise GateBroken("the scope's policy asks for it, and it is not available here")
        return await gate.judge(await self._case(hearing), hearing.policy)

    async def _case(self, hearing: _Hearing) -> Case:
        if hearing.case is None:
            depth = max(hearing.gates[name].depth for name in hearing.policy.gates if name in hearing.gates)
            if hearing.question is None:
                hearing.question = await self._question(hearing)
            hearing.case = await self._retriever.retrieve(
                hearing.question, hearing.check, hearing.view, hearing.policy.k, depth
            )
        return hearing.case

    async def _question(self, hearing: _Hearing) -> str:
        """The question as it stands alone.

        As it was asked where the LLM cannot tell, in half of the time left, and the policy lets pass what broke.
        """
        lenient = hearing.policy.on_error is OnError.ANSWER or hearing.policy.mode is Mode.OBSERVE
        left = hearing.end - time.perf_counter()
        try:
            async with asyncio.timeout(left / 2 if lenient else None):
                return await self._retriever.standalone(hearing.check)
        except (LlmFailed, TimeoutError) as error:
            if not lenient:
                raise
            log.warning("a question is taken as it was asked", cause=str(error) or "the LLM did not answer in time")
            return hearing.check.question

    def _threshold(self, name: GateName, hearing: _Hearing) -> float:
        gate = hearing.gates.get(name)
        return gate.threshold(hearing.policy) if gate else hearing.policy.probe_threshold


def _condensed(hearing: _Hearing) -> Mapping[str, Any]:
    """What the question was taken for, where that is not how it was asked."""
    if hearing.case is None or hearing.case.question == hearing.check.question:
        return {}
    return {"standalone_question": hearing.case.question}


def _elapsed_ms(start: float) -> float:
    return (time.perf_counter() - start) * 1000


def _verdict(hearing: _Hearing) -> Verdict:
    would_refuse = hearing.refused_by is not None
    enforced = hearing.policy.mode is Mode.ENFORCE
    return Verdict(
        id=new_id(),
        decision=Decision.REFUSAL if would_refuse and enforced else Decision.ANSWERABLE,
        would_refuse=would_refuse,
        refused_by=hearing.refused_by,
        reason=_reason(hearing),
        confusion=_confusion(hearing) if would_refuse else None,
        gates=tuple(hearing.results),
        evidence=_evidence(hearing),
        scope=hearing.check.scope,
        revision=hearing.case.revision if hearing.case else None,
    )


def _evidence(hearing: _Hearing) -> tuple[Evidence, ...]:
    """The k best. Where all gates passed, the piece in which one found the answer is among them, last if need be."""
    case, k = hearing.case, hearing.policy.k
    if case is None:
        return ()
    best = case.evidence[:k]
    if hearing.places and hearing.refused_by is None:
        found = max(hearing.places, key=lambda name: hearing.places[name])
        if all(piece.id != found for piece in best):
            return (*best[: k - 1], *(piece for piece in case.reading if piece.id == found))
    return best


def _confusion(hearing: _Hearing) -> Confusion | None:
    refusing = next(result for result in hearing.results if result.gate is hearing.refused_by)
    if refusing.status is not GateStatus.OK:
        return None  # a gate that broke knows of no fault in the question
    # Of the question as it was asked: that is what the spans point into.
    if hearing.confusion is not None:
        phrases = [span.text for span in hearing.confusion.spans]
        return replace(hearing.confusion, spans=located(phrases, hearing.check.question))
    if hearing.case is None:
        return None
    case, has_history = hearing.case, bool(hearing.check.history)
    try:
        return confusion(hearing.check.question, case.evidence, has_history=has_history, rarity=case.rarity)
    except Exception:
        # A refusal stands without its explanation.
        log.exception("the confusion was not found")
        return None


def _reason(hearing: _Hearing) -> str:
    if hearing.refused_by is None:
        return "Every gate passed: " + ", ".join(map(_seen, hearing.results)) + "."
    result = next(result for result in hearing.results if result.gate is hearing.refused_by)
    if result.status is not GateStatus.OK:
        return (
            f"The {result.gate} gate gave no judgement: {result.detail['cause']}; the policy counts that as a refusal."
        )
    if result.gate is GateName.PROBE:
        score, threshold = _shown(result.score or 0.0, result.threshold)
        return f"The evidence does not seem to hold the answer: P(in scope) is {score}, the threshold is {threshold}."
    if result.gate is GateName.SOFT:
        score, threshold = _shown(result.score or 0.0, result.threshold)
        return f"The LLM judges that the evidence does not hold the answer: {score} in favour, {threshold} are needed."
    from_scope = hearing.check.passages is None
    what, where = ("fact", f"scope {hearing.check.scope!r}") if from_scope else ("sentence", "the passages")
    if result.score is None:
        return f"There is no {what} in {where}."
    score, threshold = _shown(result.score, result.threshold)
    return f"No {what} in {where} is close enough: the best has S/C {score}, the threshold is {threshold}."


def _seen(result: GateResult) -> str:
    if result.status is not GateStatus.OK or result.score is None:
        return f"{result.gate} gave no judgement, which the policy counts as a pass"
    score, threshold = _shown(result.score, result.threshold)
    if result.gate is GateName.HARD:
        return f"the best S/C is {score}, below {threshold}"
    if result.gate is GateName.SOFT:
        return f"the LLM's word that it can be answered is {score}, at least {threshold}"
    return f"P(in scope) is {score}, at least {threshold}"


def _shown(score: float, threshold: float) -> tuple[str, str]:
    """Both with two digits, or with three where two would show them as equal."""
    digits = 3 if f"{score:.2f}" == f"{threshold:.2f}" else 2
    return f"{score:.{digits}f}", f"{threshold:.{digits}f}"
