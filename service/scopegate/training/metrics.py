"""How well P(in scope) tells answerable questions from others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score, roc_auc_score

BINS = 10


@dataclass(frozen=True, slots=True)
class Metrics:
    """questions: how many. answerable: how many of them are. f1: of the class answerable.

    auroc: None where one class is missing. ece: expected calibration error over BINS bins of equal width. The last
    two are the shares of either class that the threshold decides wrongly, None where there is none of it.
    """

    questions: int
    answerable: int
    accuracy: float
    f1: float
    auroc: float | None
    ece: float
    answerable_refused: float | None
    wrongly_answered: float | None


@dataclass(frozen=True, slots=True)
class Bin:
    """Questions of like probability: how many, their mean probability, and the share of them that is answerable."""

    questions: int
    probability: float
    answerable: float


def measure(probabilities: NDArray[np.floating], answerable: NDArray[np.bool_], threshold: float) -> Metrics:
    """The figures of one set, passed at or above the threshold. Both arrays: shape (n,), n at least 1."""
    passed = probabilities >= threshold
    refused, let_through = ~passed[answerable], passed[~answerable]
    both = bool(refused.size and let_through.size)
    return Metrics(
        questions=len(answerable),
        answerable=int(answerable.sum()),
        accuracy=float((passed == answerable).mean()),
        f1=float(f1_score(answerable, passed, zero_division=0.0)),
        auroc=float(roc_auc_score(answerable, probabilities)) if both else None,
        ece=sum(held.questions * abs(held.answerable - held.probability) for held in bins(probabilities, answerable))
        / len(answerable),
        answerable_refused=float(refused.mean()) if refused.size else None,
        wrongly_answered=float(let_through.mean()) if let_through.size else None,
    )


def bins(probabilities: NDArray[np.floating], answerable: NDArray[np.bool_]) -> list[Bin]:
    """The bins that hold questions, lowest first."""
    places = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    return [
        Bin(int(held.sum()), float(probabilities[held].mean()), float(answerable[held].mean()))
        for held in (places == place for place in range(BINS))
        if held.any()
    ]
