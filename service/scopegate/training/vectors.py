"""Vectors kept on disk by what they were computed from, so that nothing is computed twice."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scopegate.domain import Invalid
from scopegate.inference.encoder import Encoder

_ASKED = 500


def content_key(fingerprint: str, tokens: Sequence[int]) -> bytes:
    """The key of what a model makes of these token ids."""
    return hashlib.sha256(fingerprint.encode() + b"\0" + array("q", tokens).tobytes()).digest()


class VectorCache:
    """A file of float32 vectors by key. Several threads and processes may share it."""

    def __init__(self, path: Path) -> None:
        """Raises Invalid where the file cannot be made or is something else."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=60, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise Invalid(f"the cache {path} cannot be used: {error}") from error
        self._lock = threading.Lock()

    def get(self, keys: Sequence[bytes]) -> dict[bytes, NDArray[np.float32]]:
        """The vectors that are there, by key."""
        found: dict[bytes, NDArray[np.float32]] = {}
        for start in range(0, len(keys), _ASKED):
            part = keys[start : start + _ASKED]
            query = f"SELECT key, vector FROM vectors WHERE key IN ({','.join('?' * len(part))})"  # noqa: S608
            with self._lock:
                rows = self._connection.execute(query, part).fetchall()
            found.update((key, np.frombuffer(vector, np.float32)) for key, vector in rows)
        return found

    def put(self, vectors: Mapping[bytes, NDArray[np.float32]]) -> None:
        """Keeps them all, or none should the process end."""
        rows = [(key, vector.astype(np.float32).tobytes()) for key, vector in vectors.items()]
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", rows)
            self._connection.execute("COMMIT")

    def close(self) -> None:
        """Lets go of the file."""
        self._connection.close()


class CachedEncoder:
    """An encoder that computes only what the cache lacks."""

    def __init__(self, encoder: Encoder, cache: VectorCache) -> None:
        self._encoder = encoder
        self._cache = cache
        self.fingerprint = encoder.fingerprint
        self.dimension = encoder.dimension

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """See Encoder."""
        return self._encoder.tokens(texts)

    def encode(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """See Encoder."""
        keys = [content_key(self.fingerprint, text) for text in tokens]
        vectors = self._cache.get(keys)
        missing = {key: text for key, text in zip(keys, tokens, strict=True) if key not in vectors}
        if missing:
            made = dict(zip(missing, self._encoder.encode(list(missing.values())), strict=True))
            self._cache.put(made)
            vectors |= made
        return np.stack([vectors[key] for key in keys])
