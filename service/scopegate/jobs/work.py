"""What a kind of job has to know: its items, what to do with one, and what to say of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from scopegate.domain import JobKind


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of a job, as a document. key: unique in the job. body: JSON."""

    key: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """What became of an item, committed whole.

    rows: JSON, the result's rows. counts: summed over the items for the summary, as by stage what failed. notes:
    sentences for people on what was skipped or failed, and why; they name the item.
    """

    rows: tuple[Mapping[str, Any], ...]
    counts: Mapping[str, int]
    notes: tuple[str, ...] = ()


class Work(Protocol):
    """A kind of job. Everything it is given and gives is JSON, since it may go on in another process."""

    @property
    def kind(self) -> JobKind:
        """Which kind."""
        ...

    async def items(self, spec: Mapping[str, Any]) -> Sequence[Item]:
        """What there is to do.

        Where it raises Unavailable or Overloaded it is called again later; what else it raises ends the job.
        """
        ...

    async def do(self, spec: Mapping[str, Any], item: Item, stage: Callable[[str], None]) -> Done:
        """Does an item; stage is told what it is at, in a word or two.

        Idempotent: it may be done again after a crash, and the same spec and item make the same random choices. An
        item that fails is a Done whose counts say so. What it raises is tried once more, then counted as failed.
        """
        ...

    async def finish(self, spec: Mapping[str, Any], done: Sequence[Done]) -> Mapping[str, Any]:
        """The summary, of all items in their order; may be called again after a crash, and raise as items may."""
        ...
