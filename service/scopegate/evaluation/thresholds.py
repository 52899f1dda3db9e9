"""Alpha and the probe's threshold from labelled questions, with a guarantee on what they let through.

Learn then Test (Angelopoulos, Bates, Candès, Jordan and Lei, 2021): thresholds are tried from the strictest on, each is
kept as long as a test rejects, at level delta, that it lets too much through, and the first that is not rejected ends
it. So the chance that any kept one lets too much through is at most delta, however one chooses among them. For two
thresholds at once the order is found on questions of their own (Pareto testing, Laufer-Goldshtein et al., 2023).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scopegate.evaluation.bounds import fewest, p_values
from scopegate.evaluation.shares import percent

ALPHAS = np.round(np.arange(1, 81) * 0.05, 2)
PROBES = np.round(np.arange(100, -1, -1) * 0.01, 2)
# Of the groups with unanswerable questions, for finding the order; the rest proves.
_SEARCH = 0.2

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

    tried: in order. proven_on: how many groups, and unanswerable questions in them, the tests saw. exact: whether no
    two of those questions depend on each other, so that the tests are the binomial's.
    """

    recommended: Setting | None
    why: str | None
    tried: tuple[Tried, ...]
    proven_on: tuple[int, int]
    exact: bool


def passes(seen: Labelled, setting: Setting) -> Bools:
    """Which questions are answered, shape (n,)."""
    passed = np.ones(len(seen.answerable), bool)
    if setting.alpha is not None:
        passed &= seen.ratio < setting.alpha
    if setting.probe_threshold is not None:
        passed &= seen.probability >= setting.probe_threshold
    return passed


def calibrate(seen: Labelled, *, hard: bool, probe: bool, most: float, delta: float, seed: int = 0) -> Calibrated:
    """The thresholds that refuse the fewest answerable questions among those that are shown to let at most the share
    `most` of the unanswerable ones through, at confidence 1 - delta.

    hard, probe: the gates that are asked, one of them at least. most, delta: between 0 and 1, exclusive. seed: of the
    order of the groups.
    """
    asked = ~seen.answerable
    groups = _shuffled({name for name, wanted in zip(seen.group, asked, strict=True) if wanted}, seed)
    search = groups[: round(len(groups) * _SEARCH)] if hard and probe else []
    proof = groups[len(search) :]
    number = {name: at for at, name in enumerate(proof)}
    place = np.array([number.get(name, -1) for name in seen.group], int)
    mine = asked & (place >= 0)
    sizes = np.bincount(place[mine], minlength=len(proof))
    exact = not len(sizes) or sizes.max() == 1
    proven_on = (len(proof), int(mine.sum()))

    def nothing(why: str, tried: tuple[Tried, ...] = ()) -> Calibrated:
        return Calibrated(None, why, tried, proven_on, bool(exact))

    if not len(proof) or p_values(np.zeros((len(proof), 1), int), sizes, most, delta)[0] > delta:
        return nothing(
            f"{len(groups)} groups of unanswerable questions are too few to promise anything: that at most {percent(most)} "
            f"are let through, at confidence {percent(1 - delta)}, takes {fewest(most, delta)} or more that do not depend "
            f"on each other{', and a quarter more to find the way to two thresholds' if search else ''}"
        )
    path = _path(seen, place < 0) if hard and probe else _line(hard)
    let_through = np.stack(
        [np.bincount(place[mine & passes(seen, setting)], minlength=len(proof)) for setting in path], axis=1
    )
    found = p_values(let_through, sizes, most, delta)
    rejected = int(np.argmax(found > delta)) if (found > delta).any() else len(path)
    tried = tuple(
        Tried(setting, float(p), at < rejected) for at, (setting, p) in enumerate(zip(path, found, strict=True))
    )
    answered = [int((passes(seen, each.setting) & seen.answerable).sum()) if each.kept else 0 for each in tried]
    if not any(answered):
        return nothing(
            f"no thresholds that answer anything are shown to let at most {percent(most)} of unanswerable questions "
            f"through, at confidence {percent(1 - delta)}: the gates do not tell them apart, or the labels are too few",
            tried,
        )
    return Calibrated(tried[int(np.argmax(answered))].setting, None, tried, proven_on, bool(exact))


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
