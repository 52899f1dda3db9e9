"""Final hidden states of an LLM at a prompt's last token, through transformers or from a vLLM pooling server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scopegate.domain import Invalid
from scopegate.gate.retrieval import Case
from scopegate.gate.slots import turns
from scopegate.probe_file import Kind
from scopegate.prompts import Prompt
from scopegate.training.backbone import Backbone
from scopegate.training.vectors import VectorCache, content_key

Batch = tuple[list[int], NDArray[np.float32]]


class Reader(Protocol):
    """Computes hidden states. fingerprint: tells its numbers from another's on the same weights."""

    @property
    def fingerprint(self) -> str:
        """Tells its numbers from another's on the same weights."""

    def read(self, prompts: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """Batches in any order: which prompts, and their last tokens' final states, shape (len(batch), d).

        Raises Invalid where they cannot be computed.
        """


class HiddenStates:
    """Features from hidden states; computes only what the cache lacks, and keeps each batch as it comes."""

    def __init__(self, backbone: Backbone, prompt: Prompt, reader: Reader, cache: VectorCache) -> None:
        self._backbone = backbone
        self._prompt = prompt
        self._reader = reader
        self._cache = cache

    def describe(self) -> dict[str, Any]:
        """See Features."""
        return {"kind": Kind.HIDDEN_STATE, "prompt": self._prompt.id, **self._backbone.describe()}

    async def of(self, cases: Sequence[Case]) -> NDArray[np.float32]:
        """See Features."""
        return await asyncio.to_thread(self._of, cases)

    def _of(self, cases: Sequence[Case]) -> NDArray[np.float32]:
        prompts = [self._backbone.ids(turns(self._prompt, case)) for case in cases]
        # Ids hold prompt, texts and position alike.
        fingerprint = f"{self._backbone.fingerprint}:{self._reader.fingerprint}"
        keys = [content_key(fingerprint, ids) for ids in prompts]
        found = self._cache.get(keys)
        missing = {key: ids for key, ids in zip(keys, prompts, strict=True) if key not in found}
        asked = list(missing)
        for rows, states in self._reader.read(list(missing.values())) if missing else ():
            if states.shape[1] != self._backbone.config.hidden_size or not np.isfinite(states).all():
                wanted = self._backbone.config.hidden_size
                raise Invalid(f"the model gave states of {states.shape[1]} numbers, not of {wanted} finite ones")
            made = {asked[row]: state for row, state in zip(rows, states, strict=True)}
            self._cache.put(made)
            found |= made
        return np.stack([found[key] for key in keys])


def batches(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Divides rows into batches of like length, the longest first, each of at most most_tokens when padded."""
    planned: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if planned and lengths[planned[-1][0]] * (len(planned[-1]) + 1) <= most_tokens:
            planned[-1].append(row)
        else:
            planned.append([row])
    return planned
