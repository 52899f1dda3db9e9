"""What a probe is trained on: one row of numbers a case, whatever it is made from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scopegate.domain import Passage
from scopegate.gate.retrieval import Case, Retriever
from scopegate.gate.sentence_pair import joined, pair_features
from scopegate.inference.embedder import Embedder
from scopegate.probe_file import Kind
from scopegate.training.examples import Example

# Questions whose sentences are embedded at the same time: enough to fill the embedder's batches.
_TOGETHER = 32


class Features(Protocol):
    """Where a probe's features come from."""

    def describe(self) -> dict[str, Any]:
        """The fields of Description that say what the features are made of."""

    async def of(self, cases: Sequence[Case]) -> NDArray[np.float32]:
        """Features of the cases, shape (n, d). Raises Invalid where they cannot be made."""


async def cases_of(examples: Sequence[Example], retriever: Retriever, depth: int) -> list[Case]:
    """The examples as the service would see them: each passage's sentences, the depth best of them as evidence."""
    cases: list[Case] = []
    for start in range(0, len(examples), _TOGETHER):
        part = examples[start : start + _TOGETHER]
        cases += await asyncio.gather(
            *(retriever.from_passages(example.question, [Passage("1", example.passage)], depth) for example in part)
        )
    return cases


class SentencePairs:
    """[u; v; |u - v|] of the question's and the joined evidence's embeddings, as SentencePairProbe makes them."""

    def __init__(self, embedder: Embedder, depth: int) -> None:
        self._embedder = embedder
        self._depth = depth

    def describe(self) -> dict[str, Any]:
        """See Features."""
        return {
            "kind": Kind.SENTENCE_PAIR,
            "architecture": self._embedder.fingerprint,
            "model": self._embedder.fingerprint.partition("@")[0],
            "hidden_size": self._embedder.dimension,
            "prompt": "",
            "depth": self._depth,
        }

    async def of(self, cases: Sequence[Case]) -> NDArray[np.float32]:
        """See Features."""
        questions = await self._embedder.embed([case.question for case in cases], bulk=True)
        passages = await self._embedder.embed([joined(case.evidence[: self._depth]) for case in cases], bulk=True)
        return pair_features(questions, passages)
