"""Short ways to write facts in tests."""

from scopegate.domain import NewFact, Origin, Provenance


def fact(text: str, confidence: float = 1.0, *, source: str | None = None, fact_id: str | None = None) -> NewFact:
    return NewFact(text, (Provenance(Origin.MANUAL, source, None, confidence),), id=fact_id)


SAMPLE = [
    "Marie Curie was born in Warsaw.",
    "The Danube flows through ten countries.",
    "Basalt is a volcanic rock.",
    "The bakery on Mill Lane opens at six in the morning.",
    "Octopuses have three hearts.",
]
