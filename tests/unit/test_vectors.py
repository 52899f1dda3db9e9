from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from scopegate.domain import Invalid
from scopegate.inference.encoder import Encoder
from scopegate.training.vectors import CachedEncoder, VectorCache, content_key


class Counting:
    """The real encoder, and how many texts it has encoded."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.fingerprint = encoder.fingerprint
        self.dimension = encoder.dimension
        self.encoded = 0

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encoder.tokens(texts)

    def encode(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        self.encoded += len(tokens)
        return self._encoder.encode(tokens)


def test_nothing_is_encoded_twice(tmp_path: Path, encoder: Encoder) -> None:
    texts = ["A ferry leaves.", "It is late.", "A ferry leaves."]
    counting = Counting(encoder)
    for _ in range(2):  # the second time from disk alone
        cached = CachedEncoder(counting, VectorCache(tmp_path / "cache" / "vectors.db"))
        assert np.array_equal(cached.encode(cached.tokens(texts)), encoder.encode(encoder.tokens(texts)))
        assert counting.encoded == 2
    more = cached.encode(cached.tokens(["Something new.", "It is late."]))
    assert counting.encoded == 3
    assert np.array_equal(more[1], encoder.encode(encoder.tokens(texts))[1])


def test_another_model_or_text_has_another_key() -> None:
    keys = {content_key(*case) for case in (("a", [1, 2]), ("b", [1, 2]), ("a", [2, 1]), ("a", [1, 2, 0]), ("a", []))}
    assert len(keys) == 5


def test_threads_and_processes_share_a_file(tmp_path: Path) -> None:
    caches = [VectorCache(tmp_path / "vectors.db") for _ in range(2)]

    def fill(cache: VectorCache) -> None:
        for number in range(200):
            cache.put({content_key("m", [number]): np.full(4, number, np.float32)})

    threads = [threading.Thread(target=fill, args=[cache]) for cache in caches for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = [content_key("m", [number]) for number in range(1000)]
    found = caches[0].get(keys)
    assert {float(vector[0]) for vector in found.values()} == set(map(float, range(200)))


def test_a_file_that_is_no_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("a note, long enough to be no database " * 9)
    with pytest.raises(Invalid, match="cannot be used"):
        VectorCache(tmp_path / "note.txt")
