"""Sums up what became of a job's items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from scopegate.jobs.work import Done

# A list of jobs shows the summaries of all of them.
MOST_NOTES = 100


def summed(done: Sequence[Done]) -> dict[str, Any]:
    """The counts, those with a dot within what stands before it, and the notes, of which the first 100 are kept."""
    counts: Counter[str] = Counter()
    for one in done:
        counts.update(one.counts)
    summary: dict[str, Any] = {}
    for name, count in sorted(counts.items()):
        group, _, within = name.partition(".")
        if within:
            summary.setdefault(group, {})[within] = count
        else:
            summary[name] = count
    notes = [note for one in done for note in one.notes]
    return summary | {"notes": notes[:MOST_NOTES], "notes_left_out": max(0, len(notes) - MOST_NOTES)}
