"""What a generation job is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Options:
    """How many questions, and by how much work.

    facts_per_document: claims n of Algorithm 1, 2 or more. rounds, partitions: of mask and recover; partitions is k,
    2 or more, or nothing would be left to guess from. votes: m. seed: of all random choices.
    """

    facts_per_document: int = 10
    rounds: int = 3
    partitions: int = 3
    in_scope_questions: int = 5
    votes: int = 3
    seed: int = 0

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Self:
        """Those of a job; what it does not say is as usual."""
        return cls(**{each.name: spec[each.name] for each in fields(cls) if spec.get(each.name) is not None})
