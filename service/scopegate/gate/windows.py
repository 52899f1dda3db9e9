"""What a reader is given of a long text: windows of whole sentences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from scopegate.domain import Evidence
from scopegate.gate.retrieval import Case


def texts_of(case: Case, depth: int) -> list[tuple[Evidence, ...]]:
    """The runs of evidence that are read together, each in the order to read it in.

    Of facts the depth best of those that may be cited. Of passages each passage; and where there are several, the depth
    best sentences of all of them too, since an answer may need two.
    """
    if case.revision is not None:
        return [case.reading[:depth]]
    best = case.evidence[:depth]
    passages = [tuple(held) for _, held in groupby(case.reading, lambda each: each.id.rpartition("#")[0])]
    return passages if len(passages) < 2 else [*passages, best]


def windows(lengths: Sequence[int], room: int) -> list[slice]:
    """Runs of whole sentences, each as long as fits in room; one begins with the last sentence of the one before it.

    lengths: of each sentence, in tokens. A sentence that does not fit is a run of its own.
    """
    found: list[slice] = []
    begin = filled = 0
    for at, length in enumerate(lengths):
        if at > begin and filled + length > room:
            found.append(slice(begin, at))
            # The last sentence again, unless nothing else would fit beside it.
            begin = at - 1 if lengths[at - 1] + length <= room and at - 1 > begin else at
            filled = sum(lengths[begin:at])
        filled += length
    found.append(slice(begin, len(lengths)))
    return found
