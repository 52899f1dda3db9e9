"""Which texts say the same as another, up to wording."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scopegate.inference.embedder import Embedder
from scopegate.words import word_set, words

# Cosine. Different questions on one text stay below 0.9; reworded ones are above 0.95.
ALIKE = 0.95
_NEGATIONS = word_set("no not never without neither nor none nobody nothing")


async def originals(embedder: Embedder, texts: Sequence[str]) -> list[int]:
    """For each text the index of the first that says the same, its own where none before it does.

    Two texts say the same where their vectors are close, and they have the same numbers and negations: "in 2017" and
    "in 2018", "is" and "is not" are close, too. Raises what the embedder raises.
    """
    vectors = await embedder.embed(texts, bulk=True)
    return await asyncio.to_thread(_originals, vectors, texts)


def _originals(vectors: NDArray[np.float32], texts: Sequence[str]) -> list[int]:
    telling = [_telling(text) for text in texts]
    found: list[int] = []
    for row in range(len(texts)):
        close = np.flatnonzero(vectors[:row] @ vectors[row] >= ALIKE)
        same = (int(other) for other in close if found[other] == other and telling[other] == telling[row])
        found.append(next(same, row))
    return found


def _telling(text: str) -> frozenset[str]:
    return frozenset(
        word.stem
        for word in words(text)
        if word.stem[0].isdigit() or word.text.casefold() in _NEGATIONS or word.text.casefold().endswith("n't")
    )
