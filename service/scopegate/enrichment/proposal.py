"""Takes proposed facts into a scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scopegate.domain import MAX_FACTS, Invalid, NewFact, Origin, Provenance
from scopegate.inference.embedder import Embedder
from scopegate.inference.likeness import originals
from scopegate.knowledge import Knowledge

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Accepted:
    """What taking facts in did.

    accepted: those that went in, of which `added` are new to the scope and `duplicates` were known to it already.
    merged: those that say the same as one that went in.
    """

    accepted: int
    merged: int
    added: int
    duplicates: int
    revision: int


async def distinct(embedder: Embedder, rows: Sequence[Row]) -> list[Row]:
    """The rows without those that say the same as another: of these the first most confident stays."""
    ranked = sorted(rows, key=lambda row: -row["confidence"])
    first = await originals(embedder, [row["fact"] for row in ranked])
    kept = {row["id"] for index, row in enumerate(ranked) if first[index] == index}
    return [row for row in rows if row["id"] in kept]


def chosen(rows: Sequence[Row], ids: Sequence[str] | None) -> list[Row]:
    """The rows with these ids; all for None. Raises Invalid where an id is none of theirs."""
    if ids is None:
        return list(rows)
    wanted = set(ids)
    unknown = sorted(wanted - {row["id"] for row in rows})
    if unknown:
        raise Invalid(f"the proposal has no fact with the id {unknown[0]!r}")
    return [row for row in rows if row["id"] in wanted]


async def accept(knowledge: Knowledge, embedder: Embedder, scope: str, rows: Sequence[Row]) -> Accepted:
    """Adds proposed facts to a scope with the origin enriched; of those that say the same, the most confident.

    Idempotent: what was accepted before is known. Raises what adding facts raises.
    """
    facts = [
        NewFact(
            row["fact"],
            (Provenance(Origin.ENRICHED, row["generator"], None, row["confidence"]),),
            {"question": row["question"], "answer": row["answer"]},
        )
        for row in await distinct(embedder, rows)
    ]
    added = 0
    for first in range(0, len(facts), MAX_FACTS):
        added += (await knowledge.add(scope, facts[first : first + MAX_FACTS])).added
    revision = (await knowledge.scope(scope)).revision
    return Accepted(len(facts), len(rows) - len(facts), added, len(facts) - added, revision)
