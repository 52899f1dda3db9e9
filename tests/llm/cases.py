"""Cases for what an LLM judges, where how the evidence was found is not what is tested."""

from __future__ import annotations

from scopegate.domain import Policy
from scopegate.gate.retrieval import Case
from scopegate.words import WordCounts
from tests.unit.evidence import said


def case(question: str, *sentences: str) -> Case:
    evidence = tuple(said(*sentences))
    return Case(question, evidence, evidence, WordCounts().rarity, revision=1)


def votes(count: int) -> Policy:
    return Policy(alpha=1.2, probe_threshold=0.5, votes=count)
