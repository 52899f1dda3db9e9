"""The gatekeeper: asks the gates, cheapest first, and says whether a question may be answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from scopegate.domain import (
    Check,
    Confusion,
    Decision,
    GateName,
    GateResult,
    GateStatus,
    Mode,
    OnError,
    Policy,
    Scope,
    ScopegateError,
    Unavailable,
    Verdict,
)
from scopegate.gate.confusion import confusion
from scopegate.gate.hard import hard_passes, hard_score
from scopegate.gate.policy import default_policy, overridden
from scopegate.gate.probe import FeatureProbe
from scopegate.gate.retrieval import Case, Retriever
from scopegate.ids import new_id
from scopegate.knowledge import Knowledge, ScopeView
from scopegate.settings import Settings

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, and the case it was reached on; None where nothing could be retrieved."""

    verdict: Verdict
    case: Case | None


@dataclass(slots=True)
class _Hearing:
    """One question on its way through the gates. end is on the monotonic clock, in seconds."""

    check: Check
    policy: Policy
    view: ScopeView
    end: float
    case: Case | None = None
    results: list[GateResult] = field(default_factory=list)
    refused_by: GateName | None = None


class Gatekeeper:
    """Runs a scope's gates over a question, cheapest first, and stops at the first refusal unless asked to explain."""

    def __init__(self, knowledge: Knowledge, retriever: Retriever, probe: FeatureProbe, settings: Settings) -> None:
        self._knowledge = knowledge
        self._retriever = retriever
        self._probe = probe
        self._defaults = default_policy(settings, probe.threshold)
        self._deadline_ms = settings.deadline_ms

    def policy(self, scope: Scope) -> Policy:
        """What holds in the scope, before a request's overrides."""
        return overridden(self._defaults, scope.policy)

    async def check(self, check: Check) -> Verdict:
        """The verdict alone; see judge."""
        return (await self.judge(check)).verdict

    async def judge(self, check: Check) -> Judged:
        """Whether the question may be answered, what each gate saw, and the case.

        Raises UnknownScope; Conflict where another embedder made the scope's vectors; Invalid where the passages hold
        too many sentences; Overloaded, whatever on_error says, since trying again helps; Unavailable where the scope
        is loading, min_revision is not reached in time, or a gate fails under on_error 'fail' before any has refused.
        """
        end = time.perf_counter() + (check.deadline_ms or self._deadline_ms) / 1000
        view = await self._view(check, end)
        policy = overridden(self.policy(view.scope), check.overrides)
        hearing = _Hearing(check, policy, view, end)
        for gate in policy.gates:
            if hearing.refused_by is not None and not check.explain:
                threshold = _threshold(gate, policy)
                hearing.results.append(GateResult(gate, None, None, threshold, GateStatus.SKIPPED, 0.0))
                continue
            result = await self._ask(gate, hearing)
            hearing.results.append(result)
            if not result.passed and hearing.refused_by is None:
                hearing.refused_by = gate
        return Judged(_verdict(hearing), hearing.case)

    async def _view(self, check: Check, end: float) -> ScopeView:
        try:
            async with asyncio.timeout(end - time.perf_counter()):
                return await self._knowledge.view(check.scope, check.min_revision)
        except TimeoutError as error:
            late = f"scope {check.scope!r} did not reach revision {check.min_revision} within the deadline"
            raise Unavailable(late) from error

    async def _ask(self, gate: GateName, hearing: _Hearing) -> GateResult:
        """One gate's judgement; one that breaks or is late counts as on_error says."""
        start = time.perf_counter()
        try:
            async with asyncio.timeout(hearing.end - start):
                case = await self._case(hearing)
                return self._judgement(gate, case, hearing.policy, start)
        except TimeoutError:
            status, cause = GateStatus.DEADLINE, "it ran past the deadline"
        except ScopegateError:
            raise
        except Exception:
            log.exception("a gate broke", gate=gate)
            status, cause = GateStatus.ERROR, "it broke"
        if hearing.policy.on_error is OnError.FAIL and hearing.refused_by is None:
            raise Unavailable(f"the {gate} gate gave no judgement: {cause}")
        passed = hearing.policy.on_error is OnError.ANSWER
        threshold = _threshold(gate, hearing.policy)
        return GateResult(gate, passed, None, threshold, status, _elapsed_ms(start), {"cause": cause})

    async def _case(self, hearing: _Hearing) -> Case:
        if hearing.case is None:
            depth = max(hearing.policy.k, self._probe.depth)
            hearing.case = await self._retriever.retrieve(hearing.check, hearing.view, depth)
        return hearing.case

    def _judgement(self, gate: GateName, case: Case, policy: Policy, start: float) -> GateResult:
        threshold = _threshold(gate, policy)
        detail: Mapping[str, Any] = {}
        if gate is GateName.HARD:
            score = hard_score(case.evidence)
            passed = hard_passes(score, threshold)
            if case.evidence:
                detail = {"fact_id": case.evidence[0].id}
        else:
            score = self._probe.judge(case.question, case.evidence, case.rarity)
            passed = score >= threshold
            detail = {"probe": self._probe.name}
        return GateResult(gate, passed, score, threshold, GateStatus.OK, _elapsed_ms(start), detail)


def _threshold(gate: GateName, policy: Policy) -> float:
    return policy.alpha if gate is GateName.HARD else policy.probe_threshold


def _elapsed_ms(start: float) -> float:
    return (time.perf_counter() - start) * 1000


def _verdict(hearing: _Hearing) -> Verdict:
    would_refuse = hearing.refused_by is not None
    enforced = hearing.policy.mode is Mode.ENFORCE
    evidence = hearing.case.evidence if hearing.case else ()
    return Verdict(
        id=new_id(),
        decision=Decision.REFUSAL if would_refuse and enforced else Decision.ANSWERABLE,
        would_refuse=would_refuse,
        refused_by=hearing.refused_by,
        reason=_reason(hearing),
        confusion=_confusion(hearing) if would_refuse else None,
        gates=tuple(hearing.results),
        evidence=evidence[: hearing.policy.k],
        scope=hearing.check.scope,
        revision=hearing.case.revision if hearing.case else None,
    )


def _confusion(hearing: _Hearing) -> Confusion | None:
    if hearing.case is None:
        return None
    case, has_history = hearing.case, bool(hearing.check.history)
    try:
        return confusion(case.question, case.evidence, has_history=has_history, rarity=case.rarity)
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
    return f"P(in scope) is {score}, at least {threshold}"


def _shown(score: float, threshold: float) -> tuple[str, str]:
    """Both with two digits, or with three where two would show them as equal."""
    digits = 3 if f"{score:.2f}" == f"{threshold:.2f}" else 2
    return f"{score:.{digits}f}", f"{threshold:.{digits}f}"
