"""What a question is judged by: the nearest facts of its scope, or the sentences of passages that came with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from scopegate.domain import Check, Evidence, Invalid, Passage, Turn
from scopegate.inference.embedder import Embedder
from scopegate.knowledge import ScopeView
from scopegate.knowledge.sentences import split
from scopegate.settings import Settings
from scopegate.words import WordCounts

# Sentences of passages that an LLM reads, about 2,000 tokens of them.
MAX_READ = 64


@dataclass(frozen=True, slots=True)
class Case:
    """A question and what was found for it, best first by S/C.

    question: as it stands alone, which is as it was asked unless it came in a conversation. evidence may hold more than
    the policy's k: a gate may want to see further. reading: what an LLM reads and may cite: the k best facts, or, since
    a passage's sentences lean on each other, the MAX_READ best of the passages in their own order. rarity tells how
    rare a word is where the evidence comes from. revision is None where the caller brought passages.
    """

    question: str
    evidence: tuple[Evidence, ...]
    reading: tuple[Evidence, ...]
    rarity: Callable[[str], float]
    revision: int | None


class Condenser(Protocol):
    """Makes a conversation's last turn a question that stands alone."""

    async def standalone(self, question: str, history: tuple[Turn, ...]) -> str:
        """The question itself where it stands alone already. Raises LlmFailed or Overloaded."""


class Retriever:
    """Finds a question's evidence."""

    def __init__(self, embedder: Embedder, settings: Settings, condenser: Condenser | None = None) -> None:
        """condenser: None where there is no LLM; then a question is taken as it was asked."""
        self._embedder = embedder
        self._condenser = condenser
        self._max_sentences = settings.max_sentences

    async def standalone(self, check: Check) -> str:
        """The question, understandable without the conversation that it came in. Raises as Condenser does."""
        if self._condenser is None or not check.history:
            return check.question
        return await self._condenser.standalone(check.question, check.history)

    async def retrieve(self, question: str, check: Check, view: ScopeView, k: int, depth: int) -> Case:
        """The max(k, depth) best facts or sentences. question: the check's, standing alone.

        Raises Overloaded; Invalid where the passages hold too many sentences.
        """
        if check.passages is not None:
            return await self.from_passages(question, check.passages, max(k, depth))
        (vector,) = await self._embedder.embed([question])
        evidence, revision = await view.nearest(vector, max(k, depth))
        return Case(question, tuple(evidence), tuple(evidence[:k]), view.counts.rarity, revision)

    async def from_passages(self, question: str, passages: Sequence[Passage], depth: int) -> Case:
        """The depth best sentences of the passages. Raises as retrieve does."""
        sentences = await asyncio.to_thread(_sentences, passages, self._max_sentences)
        distinct = list(dict.fromkeys(sentence.text for sentence in sentences))
        vectors = await self._embedder.embed([question, *distinct])
        return await asyncio.to_thread(_case, question, sentences, distinct, vectors, depth)


class _Sentence(NamedTuple):
    """A sentence of a passage, and its number in it, from 1."""

    passage: Passage
    number: int
    text: str


def _sentences(passages: Sequence[Passage], limit: int) -> list[_Sentence]:
    """Every sentence of the passages. Raises Invalid where there are more than limit."""
    sentences: list[_Sentence] = []
    for passage in passages:
        sentences += (_Sentence(passage, number, text) for number, text in enumerate(split(passage.text), start=1))
        if len(sentences) > limit:
            raise Invalid(f"the passages hold more than {limit} sentences, the most that one question may bring")
    return sentences


def _case(
    question: str, sentences: Sequence[_Sentence], distinct: Sequence[str], vectors: NDArray[np.float32], depth: int
) -> Case:
    """The depth best sentences. vectors: shape (1 + len(distinct), d), the question's first."""
    counts = WordCounts()
    for sentence in sentences:
        counts.add(sentence.text)
    apart = dict(zip(distinct, np.clip(2 - 2 * (vectors[1:] @ vectors[0]), 0, 4).tolist(), strict=True))
    distances = np.array([apart[sentence.text] for sentence in sentences])
    ratios = distances / np.array([sentence.passage.confidence for sentence in sentences])
    order = np.lexsort((distances, ratios))

    def found(at: int) -> Evidence:
        passage, number, text = sentences[at]
        return Evidence(
            f"{passage.id}#{number}",
            text,
            passage.confidence,
            float(distances[at]),
            float(ratios[at]),
            passage.source,
        )

    return Case(
        question,
        tuple(map(found, order[:depth])),
        tuple(map(found, sorted(order[:MAX_READ]))),
        counts.rarity,
        None,
    )
