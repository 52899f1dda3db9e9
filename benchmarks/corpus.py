"""Sample facts and questions of our own making, as many as a benchmark wants, all different."""

from __future__ import annotations

import random
from collections.abc import Iterator

NAMES = "Ada Boris Carmen Dalia Emil Farah Goran Hana Idris Jonas Kaja Lior Mina Nuno Odile Pavel Quyen Rosa Samir Tova"
PLACES = "Alder Birch Cedar Dover Elm Fjord Grove Heron Inlet Juniper Kestrel Larch Marsh Norden Otter Pine Quarry Reed"
THINGS = "bridge mill ferry school library tower market theatre harbour clinic bakery museum station chapel garden dam"
MAKING = "built designed painted restored opened sold photographed described measured insured inspected moved"
QUALITY = "old wooden small famous yellow empty round narrow noisy abandoned bright modern crooked quiet long steep"


def facts(n: int, seed: int = 0) -> Iterator[str]:
    """n different sentences of eight to fourteen words."""
    rng = random.Random(seed)
    for number in range(n):
        yield (
            f"{_pick(rng, NAMES)} {_pick(rng, NAMES)}son {_pick(rng, MAKING)} the {_pick(rng, QUALITY)} "
            f"{_pick(rng, THINGS)} number {number} of {_pick(rng, PLACES)}{_pick(rng, PLACES).lower()} "
            f"in {rng.randint(1500, 2020)}."
        )


def questions(n: int, seed: int = 1) -> Iterator[str]:
    """n different questions about such facts; some of what they ask is known, much is not."""
    rng = random.Random(seed)
    for number in range(n):
        yield (
            f"Who {_pick(rng, MAKING)} the {_pick(rng, QUALITY)} {_pick(rng, THINGS)} number {number} "
            f"of {_pick(rng, PLACES)}{_pick(rng, PLACES).lower()}?"
        )


def _pick(rng: random.Random, words: str) -> str:
    return rng.choice(words.split())
