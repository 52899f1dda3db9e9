"""A probe over two sentence embeddings, the question's and its evidence's (ELOQ, section 4.2.1)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scopegate.domain import Evidence, Invalid
from scopegate.gate.gate import Seen
from scopegate.gate.head import Head, probability
from scopegate.gate.retrieval import Case
from scopegate.inference.embedder import Embedder
from scopegate.probe_file import Kind, ProbeFile


def joined(evidence: Iterable[Evidence]) -> str:
    """The text that stands for the evidence, best first; the embedder cuts what is too long for it."""
    return " ".join(fact.text for fact in evidence)


def pair_features(questions: NDArray[np.float32], passages: NDArray[np.float32]) -> NDArray[np.float32]:
    """[u; v; |u - v|]. Both of shape (n, d); returns shape (n, 3 d)."""
    return np.concatenate([questions, passages, np.abs(questions - passages)], axis=1)


class SentencePairProbe:
    """name: tells this probe from others. threshold: passed at or above it. depth: how much evidence it reads."""

    def __init__(self, file: ProbeFile, embedder: Embedder) -> None:
        """Raises Invalid where the file is of another kind of probe, or of another embedder."""
        description = file.description
        if description.kind is not Kind.SENTENCE_PAIR:
            raise Invalid(f"{file.path.name} holds a probe of kind {description.kind}, not of sentence pairs")
        if description.architecture != embedder.fingerprint:
            raise Invalid(
                f"{file.path.name} was trained on the embedder {description.architecture}, "
                f"and this service runs {embedder.fingerprint}"
            )
        self.name = description.name
        self.threshold = description.threshold
        self.depth = description.depth
        self._head = Head.load(file)
        self._embedder = embedder

    @classmethod
    def load(cls, path: Path, embedder: Embedder) -> SentencePairProbe:
        """The probe in a file that `scopegate probe train` wrote. Raises Invalid where it is none, or does not fit."""
        try:
            return cls(ProbeFile.read(path), embedder)
        except ValueError as error:
            raise Invalid(str(error)) from error

    async def judge(self, case: Case) -> Seen:
        """See Probe. Raises as Embedder.embed does."""
        if not case.evidence:
            return Seen(0.0)
        question, passage = await self._embedder.embed([case.question, joined(case.evidence[: self.depth])])
        logits = self._head.logits(pair_features(question[None], passage[None]))
        return Seen(float(probability(logits)[0]))
