"""The hard gate: is anything known that is close enough, for its confidence? (Learn to Refuse, eq. 2)."""

from __future__ import annotations

from collections.abc import Sequence

from scopegate.domain import Evidence


def hard_score(evidence: Sequence[Evidence]) -> float | None:
    """min S/C over the evidence, 0 or more; None where there is none: nothing is known, so nothing passes."""
    return min((fact.ratio for fact in evidence), default=None)


def hard_passes(score: float | None, alpha: float) -> bool:
    """I_hard: whether the score is below the threshold."""
    return score is not None and score < alpha
