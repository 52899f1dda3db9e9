"""Alpha and the probe's threshold from labelled questions, with a guarantee on what they let through.

Learn then Test (Angelopoulos, Bates, Candès, Jordan and Lei, 2021): thresholds are tried from the strictest on, each is
kept as long as a test rejects, at level delta, that it lets too much through, and the first that is not rejected ends
it. So the chance that any kept one lets too much through is at most delta, however one chooses among them. For two
thresholds at once the order is found on questions of their own (Pareto testing, Laufer-Goldshtein et al., 2023).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, count

import numpy as np
from numpy.typing import NDArray

from scopegate.evaluation.bounds import fewest, p_values
from scopegate.evaluation.shares import percent

ALPHAS = np.round(np.arange(1, 81) * 0.05, 2)
PROBES = np.round(np.arange(100, -1, -1) * 0.01, 2)
# Of the groups with unanswerable questions, for finding the order; the rest proves.
_SEARCH = 0.2
_BLOCK = 16

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Labelled:
    """Questions that the gates have seen, n of them.

    ratio: min S/C, infinity where nothing is known. probability: P(in scope). group: questions that share one, as a
    passage, depend on each other.
    """

    ratio: Floats
    probability: Floats
    answerable: Bools
    group: Sequence[str]


@dataclass(frozen=True, slots=True)
class Setting:
    """Thresholds; None for a gate that is not asked."""

    alpha: float | None
    probe_threshold: float | None


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting, the p-value of "it lets too much through", and whether it is kept."""

    setting: Setting
    p_value: float
    kept: bool


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What can be said of thresholds. recommended: None where nothing can be promised, and why says why then.

    tried: in order. proven_on: how many groups, and unanswerable questions in them, the tests saw. largest: how many
    questions a group was taken to hold; where it is 1, the tests are the binomial's.
    """

    recommended: Setting | None
    why: str | None
    tried: tuple[Tried, ...]
    proven_on: tuple[int, int]
    largest: int


def passes(seen: Labelled, setting: Setting) -> Bools:
    """Which questions are answered, shape (n,)."""
    passed = np.ones(len(seen.answerable), bool)
    if setting.alpha is not None:
        passed &= seen.ratio < setting.alpha
    if setting.probe_threshold is not None:
        passed &= seen.probability >= setting.probe_threshold
    return passed


def calibrate(
    seen: Labelled, *, hard: bool, probe: bool, most: float, delta: float, seed: int = 0, largest: int = 1
) -> Calibrated:
    """The thresholds that refuse the fewest answerable questions among those that are shown to let at most the share
    `most` of the unanswerable ones through, at confidence 1 - delta.

    hard, probe: the gates that are asked, one of them at least. most, delta: between 0 and 1, exclusive. seed: of the
    order of the groups. largest: how many unanswerable questions a group to come may hold; more, where one has more.
    """
    asked = ~seen.answerable
    sizes_by_name = Counter(compress(seen.group, asked))
    largest = max(largest, *sizes_by_name.values(), 1)
    proof = divided(sizes_by_name, seed)[1] if hard and probe else _shuffled(sizes_by_name, seed)
    number = {name: at for at, name in enumerate(proof)}
    place = np.array([number.get(name, -1) for name in seen.group], int)
    mine = asked & (place >= 0)
    sizes = np.array([sizes_by_name[name] for name in proof], int)

    def calibrated(recommended: Setting | None, why: str | None, tried: tuple[Tried, ...] = ()) -> Calibrated:
        return Calibrated(recommended, why, tried, (len(proof), int(mine.sum())), largest)

    promise = f"at most {percent(most)} are let through, at confidence {percent(1 - delta)}"
    if not len(proof) or p_values(np.zeros((len(proof), 1), int), sizes, most, delta, largest)[0] > delta:
        needed = fewest(sizes if len(sizes) else np.ones(1, int), most, delta, largest)
        if hard and probe:
            needed = next(all_ for all_ in count(needed) if all_ - round(all_ * _SEARCH) >= needed)
        return calibrated(None, _too_few(len(sizes_by_name), needed, largest, promise))
    path = _path(seen, place < 0) if hard and probe else _line(hard)
    # Some at a time: of all at once, many labels would fill the memory.
    found = np.concatenate(
        [
            p_values(
                np.stack(
                    [np.bincount(place[mine & passes(seen, setting)], minlength=len(proof)) for setting in some], axis=1
                ),
                sizes,
                most,
                delta,
                largest,
            )
            for some in (path[start : start + _BLOCK] for start in range(0, len(path), _BLOCK))
        ]
    )
    rejected = int(np.argmax(found > delta)) if (found > delta).any() else len(path)
    tried = tuple(
        Tried(setting, float(p), at < rejected) for at, (setting, p) in enumerate(zip(path, found, strict=True))
    )
    answered = [int((passes(seen, each.setting) & seen.answerable).sum()) if each.kept else 0 for each in tried]
    if not any(answered):
        return calibrated(
            None,
            f"no thresholds that answer anything show that {promise}: "
            "the gates do not tell them apart, or the labels are too few",
            tried,
        )
    return calibrated(tried[int(np.argmax(answered))].setting, None, tried)


def divided(groups: Iterable[str], seed: int) -> tuple[list[str], list[str]]:
    """The groups on which two thresholds' order is found, and those that prove."""
    order = _shuffled(groups, seed)
    search = round(len(order) * _SEARCH)
    return order[:search], order[search:]


def _too_few(groups: int, needed: int, largest: int, promise: str) -> str:
    said = (
        f"{groups} groups of unanswerable questions are too few to promise anything: "
        f"to show that {promise}, it takes {needed} or more like these, with none let through"
    )
    if largest == 1:
        return said
    return (
        f"{said}, where up to {largest} questions depend on each other; fewer do for smaller groups, "
        "so leave out questions that repeat others"
    )


def _shuffled(groups: Iterable[str], seed: int) -> list[str]:
    return sorted(groups, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())


def _line(hard: bool) -> list[Setting]:
    """One gate's thresholds, strictest first."""
    if hard:
        return [Setting(float(alpha), None) for alpha in ALPHAS]
    return [Setting(None, float(threshold)) for threshold in PROBES]


def _path(seen: Labelled, searched: Bools) -> list[Setting]:
    """Both gates' thresholds, strictest first: those of which, among the questions searched, none lets less through
    and refuses fewer answerable ones; before them, the first of these with a higher threshold of the probe."""
    wrong = _passing(seen, searched & ~seen.answerable)
    right = _passing(seen, searched & seen.answerable)
    # np.lexsort's last key is the first; where all is equal, the strictest comes first.
    order = np.lexsort((-right.ravel(), wrong.ravel()))
    answered = right.ravel()[order]
    better = np.diff(np.maximum.accumulate(answered), prepend=0) > 0
    rows, columns = np.divmod(order[better], len(PROBES))
    if not len(rows):
        return [Setting(float(ALPHAS[-1]), float(threshold)) for threshold in PROBES]
    before = np.arange(columns[0])
    rows, columns = np.append(np.full(len(before), rows[0]), rows), np.append(before, columns)
    return [Setting(float(alpha), float(probe)) for alpha, probe in zip(ALPHAS[rows], PROBES[columns], strict=True)]


def _passing(seen: Labelled, of: Bools) -> NDArray[np.int64]:
    """How many of those questions pass at each alpha and threshold, shape (len(ALPHAS), len(PROBES))."""
    counts = np.zeros((len(ALPHAS) + 1, len(PROBES) + 1), int)
    rows = np.searchsorted(ALPHAS, seen.ratio[of], side="right")
    columns = np.searchsorted(-PROBES, -seen.probability[of], side="left")
    np.add.at(counts, (rows, columns), 1)
    return counts.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
