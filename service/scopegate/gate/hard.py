"""The hard gate: is anything known that is close enough, for its confidence? (Learn to Refuse, eq. 2)."""

from __future__ import annotations

from collections.abc import Sequence

from scopegate.domain import Evidence, GateName, Policy
from scopegate.gate.gate import Judgement
from scopegate.gate.retrieval import Case


def hard_score(evidence: Sequence[Evidence]) -> float | None:
    """min S/C over the evidence, 0 or more; None where there is none: nothing is known, so nothing passes."""
    return min((fact.ratio for fact in evidence), default=None)


def hard_passes(score: float | None, alpha: float) -> bool:
    """I_hard: whether the score is below the threshold."""
    return score is not None and score < alpha


class HardGate:
    """The hard gate, asked first: it needs nothing but the distances."""

    name = GateName.HARD
    depth = 1

    def threshold(self, policy: Policy) -> float:
        """See Gate."""
        return policy.alpha

    async def judge(self, case: Case, policy: Policy) -> Judgement:
        """See Gate."""
        score = hard_score(case.evidence)
        detail = {"fact_id": case.evidence[0].id} if case.evidence else {}
        return Judgement(score, hard_passes(score, policy.alpha), detail)
