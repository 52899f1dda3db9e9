"""Evidence as the real encoder finds it, for tests of what is judged from it."""

from __future__ import annotations

from collections.abc import Sequence

from scopegate.domain import Evidence
from scopegate.inference.encoder import Encoder


def evidence(encoder: Encoder, question: str, sentences: Sequence[str]) -> list[Evidence]:
    """The sentences, closest first."""
    vectors = encoder.encode(encoder.tokens([question, *sentences]))
    distances = (2 - 2 * vectors[1:] @ vectors[0]).tolist()
    found = [
        Evidence(str(number), text, 1.0, distance, distance, None)
        for number, (text, distance) in enumerate(zip(sentences, distances, strict=True))
    ]
    return sorted(found, key=lambda held: held.ratio)


def said(*sentences: str) -> list[Evidence]:
    """The sentences at one middling distance, where distance is not what is tested."""
    return [Evidence(str(number), text, 1.0, 0.8, 0.8, None) for number, text in enumerate(sentences)]
