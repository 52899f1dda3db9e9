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


async def distinct(embedder: Embedder, rows: Sequence[Row]) -> dict[str, Row]:
    """For each row's id the row that is taken for it: of those that say the same, the first most confident."""
    ranked = sorted(rows, key=lambda row: -row["confidence"])
    first = await originals(embedder, [row["fact"] for row in ranked])
    return {row["id"]: ranked[index] for row, index in zip(ranked, first, strict=True)}


def chosen(rows: Sequence[Row], ids: Sequence[str] | None) -> list[Row]:
    """The rows with these ids; all for None. Raises Invalid where an id is none of theirs."""
    if ids is None:
        return list(rows)
    wanted = set(ids)
    unknown = sorted(wanted - {row["id"] for row in rows})
    if unknown:
        raise Invalid(f"the proposal has no fact with the id {unknown[0]!r}")
    return [row for row in rows if row["id"] in wanted]


async def accept(
    knowledge: Knowledge, embedder: Embedder, scope: str, rows: Sequence[Row], ids: Sequence[str] | None = None
) -> Accepted:
    """Adds proposed facts to a scope with the origin enriched: those with these ids, or all.

    Of rows that say the same, chosen or not, the most confident goes in, so that no two do one after the other.
    Idempotent: what was accepted before is known. Raises Invalid where an id is none of theirs, and what adding facts
    raises.
    """
    wanted = chosen(rows, ids)
    taken_for = await distinct(embedder, rows)
    taken = {taken_for[row["id"]]["id"]: taken_for[row["id"]] for row in wanted}
    facts = [
        NewFact(
            row["fact"],
            (Provenance(Origin.ENRICHED, row["generator"], None, row["confidence"]),),
            {"question": row["question"], "answer": row["answer"]},
        )
        for row in taken.values()
    ]
    added = 0
    for first in range(0, len(facts), MAX_FACTS):
        added += (await knowledge.add(scope, facts[first : first + MAX_FACTS])).added
    revision = (await knowledge.scope(scope)).revision
    return Accepted(len(facts), len(wanted) - len(facts), added, len(facts) - added, revision)
