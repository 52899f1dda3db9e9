"""Tests of "more than this share is let through" that hold for any number of questions, without an approximation."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

# Of the largest bet that the largest group allows: groups a third larger than that are still covered.
_BOLDEST = 0.75
# More groups than anybody labels are not counted.
_MANY = 2**17


def p_values(
    let_through: NDArray[np.int64], sizes: NDArray[np.int64], most: float, delta: float, largest: int
) -> NDArray[np.float64]:
    """For each of L thresholds, the p-value of "the share of questions let through is above `most`".

    let_through: shape (G, L), how many of each group's questions; groups are independent of each other, their questions
    need not be, and stand in an order that has nothing to do with them. sizes: shape (G,), their questions, 1 or more.
    largest: how many a group may hold; to be known beforehand, or bets depend on what they are made on.
    Single questions: the binomial's tail, with which Clopper-Pearson bounds are made. Groups: a bet on each against the
    hypothesis (Waudby-Smith and Ramdas, 2024, section 4.1), on the questions let through less `most` times the group's
    size, whose mean is above 0 exactly where the share is above `most`; 1/p is the most that the bettor ever had.
    """
    if largest == 1:
        tail: NDArray[np.float64] = _binomial_tail(len(sizes), most)[let_through.sum(axis=0)]
        return tail
    gains = most * sizes[:, None] - let_through
    seen = np.arange(1, len(sizes) + 1)[:, None]
    means = np.cumsum(gains, axis=0) / seen
    guess = most * (1 - most) * largest**2
    spread = guess + np.cumsum((gains - means) ** 2, axis=0)
    # What is bet on a group is set by those before it.
    variance = np.vstack([np.full((1, gains.shape[1]), guess), (spread / (seen + 1))[:-1]])
    bets = np.sqrt(2 * math.log(1 / delta) / (len(sizes) * variance))
    bets = np.minimum(bets, _BOLDEST / ((1 - most) * largest))
    wealth = np.cumsum(np.log1p(bets * gains), axis=0).max(axis=0)
    found: NDArray[np.float64] = np.exp(-np.maximum(wealth, 0.0))
    return found


def covered(largest: int) -> int:
    """How many questions a group may hold where bets were made for groups of so many."""
    return 1 if largest == 1 else int(largest / _BOLDEST)


def fewest(sizes: NDArray[np.int64], most: float, delta: float, largest: int) -> int:
    """How many groups of such sizes, in turn, it takes to show anything, if none of their questions is let through.

    Of very many, at least that many.
    """

    def shows(groups: int) -> bool:
        return bool(p_values(np.zeros((groups, 1), int), np.resize(sizes, groups), most, delta, largest)[0] <= delta)

    enough = 1
    while enough < _MANY and not shows(enough):
        enough *= 2
    return bisect_left(range(enough), True, lo=enough // 2 + 1, key=shows)


def _binomial_tail(n: int, rate: float) -> NDArray[np.float64]:
    """P(at most k of n) for k from 0 to n, shape (n + 1,)."""
    drawn = np.arange(1, n + 1)
    ways = np.concatenate([[0.0], np.cumsum(np.log(n + 1 - drawn) - np.log(drawn))])
    successes = np.arange(n + 1)
    logs = ways + successes * math.log(rate) + (n - successes) * math.log1p(-rate)
    return np.minimum(np.exp(np.logaddexp.accumulate(logs)), 1.0)
