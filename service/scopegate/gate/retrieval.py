"""What a question is judged by: the nearest facts of its scope, or the sentences of passages that came with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scopegate.domain import Check, Evidence, Passage
from scopegate.inference.embedder import Embedder
from scopegate.knowledge import ScopeView
from scopegate.knowledge.sentences import split
from scopegate.words import WordCounts


@dataclass(frozen=True, slots=True)
class Case:
    """A question and what was found for it, best first by S/C.

    evidence may hold more than the policy's k: a probe may want to see further. rarity tells how rare a word is where
    the evidence comes from. revision is None where the caller brought passages.
    """

    question: str
    evidence: tuple[Evidence, ...]
    rarity: Callable[[str], float]
    revision: int | None


class Retriever:
    """Finds a question's evidence."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    async def retrieve(self, check: Check, view: ScopeView, depth: int) -> Case:
        """The depth best facts or sentences. Raises Overloaded."""
        if check.passages is not None:
            return await self._from_passages(check.question, check.passages, depth)
        (question,) = await self._embedder.embed([check.question])
        evidence, revision = await view.nearest(question, depth)
        return Case(check.question, tuple(evidence), view.counts.rarity, revision)

    async def _from_passages(self, question: str, passages: Sequence[Passage], depth: int) -> Case:
        sentences = await asyncio.to_thread(_sentences, passages)
        vectors = await self._embedder.embed([question, *(text for _, _, text in sentences)])
        distances = np.clip(2 - 2 * (vectors[1:] @ vectors[0]), 0, 4)
        counts = WordCounts()
        evidence = []
        for (passage, number, text), distance in zip(sentences, distances.tolist(), strict=True):
            counts.add(text)
            ratio = distance / passage.confidence
            found = Evidence(f"{passage.id}#{number}", text, passage.confidence, distance, ratio, passage.source)
            evidence.append(found)
        evidence.sort(key=lambda found: (found.ratio, found.distance))
        return Case(question, tuple(evidence[:depth]), counts.rarity, None)


def _sentences(passages: Sequence[Passage]) -> list[tuple[Passage, int, str]]:
    """Each passage's sentences with their number in it, from 1."""
    return [(passage, number, text) for passage in passages for number, text in enumerate(split(passage.text), start=1)]
