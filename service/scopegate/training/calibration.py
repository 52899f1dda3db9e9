"""What is set on the validation part once a network is trained: its temperature and its threshold."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

_MOST = math.log(100)


def log_loss(logits: NDArray[np.floating], answerable: NDArray[np.bool_]) -> float:
    """Mean negative log-likelihood, in nats."""
    return float(np.logaddexp(0.0, np.where(answerable, -logits, logits)).mean())


def temperature(logits: NDArray[np.floating], answerable: NDArray[np.bool_]) -> float:
    """The T, 1/100 to 100, for which the logits divided by T have the least log_loss (Guo et al., 2017)."""
    found = minimize_scalar(
        lambda log_t: log_loss(logits / math.exp(log_t), answerable), bounds=(-_MOST, _MOST), method="bounded"
    )
    return math.exp(found.x)


def threshold(probabilities: NDArray[np.floating], answerable: NDArray[np.bool_], wrongly_answered: float) -> float:
    """The lowest threshold at which no more than that share of the unanswerable questions pass.

    wrongly_answered: 0 to 1. It lies midway between two scores that occur, so that rounding moves nobody across.
    """
    unanswerable = np.sort(probabilities[~answerable])[::-1]
    let_through = math.floor(wrongly_answered * len(unanswerable) + 1e-9)
    if let_through == len(unanswerable):
        return 0.0
    refused = unanswerable[let_through]
    return float((refused + min(probabilities[probabilities > refused], default=1.0)) / 2)
