"""The embedder that the service shares: texts in, unit vectors out, recent texts remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from scopegate.inference.batcher import Batcher
from scopegate.inference.encoder import Encoder
from scopegate.settings import Settings

# What one caller has in the queue at a time: enough to fill batches, little enough to let others in between.
SLICE = 64
INLINE = 4


class Embedder:
    """An encoder behind a cache and a batcher."""

    def __init__(self, encoder: Encoder, settings: Settings) -> None:
        self._encoder = encoder
        self._batcher: Batcher[Sequence[int], NDArray[np.float32]] = Batcher(
            encoder.encode,
            "embedder",
            threads=settings.embed_threads,
            batch_tokens=settings.embed_batch_tokens,
            wait_ms=settings.embed_batch_wait_ms,
            limit=settings.embed_queue,
        )
        self._recent: LRUCache[str, NDArray[np.float32]] = LRUCache(max(settings.embed_cache, 1))
        self.fingerprint = encoder.fingerprint
        self.dimension = encoder.dimension

    @property
    def waiting(self) -> int:
        """How many texts wait for a batch."""
        return self._batcher.waiting

    async def embed(self, texts: Sequence[str], *, bulk: bool = False) -> NDArray[np.float32]:
        """Unit vectors of the texts, shape (len(texts), d).

        bulk: texts to be stored; they yield to those of requests, are bound by no queue limit and not remembered.
        Raises Overloaded where too many texts of requests wait already, Unavailable once it has stopped.
        """
        vectors = np.empty((len(texts), self.dimension), np.float32)
        missing: dict[str, list[int]] = {}
        for row, text in enumerate(texts):
            recent = self._recent.get(text)
            if recent is None:
                missing.setdefault(text, []).append(row)
            else:
                vectors[row] = recent
        # Texts of like length share a batch, so that little of it is padding.
        distinct = sorted(missing, key=len)
        for start in range(0, len(distinct), SLICE):
            part = distinct[start : start + SLICE]
            if len(part) <= INLINE:
                tokens = self._encoder.tokens(part)
            else:
                tokens = await asyncio.to_thread(self._encoder.tokens, part)
            for text, vector in zip(part, await self._batcher.outputs(tokens, bulk=bulk), strict=True):
                vectors[missing[text]] = vector
                if not bulk:
                    self._recent[text] = vector.copy()  # a row alone would keep its whole batch in memory
        return vectors

    async def stop(self) -> None:
        """Ends the batcher's workers."""
        await self._batcher.stop()
