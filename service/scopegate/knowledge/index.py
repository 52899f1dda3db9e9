"""A scope's vectors in FAISS: exact while few, a graph when many, and the hard gate's exact minimum on both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from scopegate.domain import Invalid

Vectors = NDArray[np.float32]

FIRST_FETCH = 32
GROWTH = 8
# Where so many neighbours do not settle the minimum, one pass over all vectors costs less than asking for more.
LAST_FETCH = 2048
# Positions of removed facts stay in FAISS, which cannot take them from a graph, until they outnumber the rest.
FEW_DEAD = 1024


class Neighbour(NamedTuple):
    """A fact near a question: its key, distance S (squared L2, 0 to 4) and confidence C."""

    key: int
    distance: float
    confidence: float


@dataclass(frozen=True, slots=True)
class IndexKind:
    """What FAISS index to use: exhaustive up to exact_limit facts, then factory with its search parameters."""

    dimension: int
    exact_limit: int
    factory: str
    parameters: str

    def make(self, size: int) -> Any:
        """An empty FAISS index for about size vectors. Raises Invalid where the factory's distances are not exact."""
        if size <= self.exact_limit:
            return faiss.IndexFlatL2(self.dimension)
        try:
            index = faiss.index_factory(self.dimension, self.factory)
            self.tune(index)
        except RuntimeError as error:
            raise Invalid(f"FAISS does not know the index {self.factory!r} with {self.parameters!r}") from error
        if _exact_storage(index) is None:
            raise Invalid(f"the index {self.factory!r} keeps no exact vectors: end a quantised one in ',RFlat'")
        return index

    def tune(self, index: Any) -> None:
        """Sets the search parameters, which FAISS does not store with every index."""
        if self.parameters:
            space: Any = faiss.ParameterSpace()
            space.set_index_parameters(index, self.parameters)


class VectorIndex:
    """Vectors by fact key. Not safe for a change beside anything else; searches may run side by side.

    A fact has a position in FAISS for each vector it ever had here; only the last one, if any, is alive.
    """

    def __init__(self, kind: IndexKind, size: int = 0) -> None:
        self.kind = kind
        self.faiss = kind.make(size)
        self._is_exact = isinstance(self.faiss, faiss.IndexFlat)
        self._keys = np.empty(0, np.int64)
        self._alive = np.empty(0, np.bool_)
        self._confidences = np.empty(0, np.float64)  # as stored: a verdict quotes them
        self._positions: dict[int, int] = {}
        self._ceiling = 1.0

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, key: int) -> bool:
        return key in self._positions

    @property
    def wants_rebuild(self) -> bool:
        """Whether it has outgrown exhaustive search, or holds more of the dead than of the living."""
        dead = len(self._keys) - len(self)
        return dead > max(FEW_DEAD, len(self)) or (self._is_exact and len(self) > self.kind.exact_limit)

    def apply(
        self, removed: Iterable[int], keys: Sequence[int], vectors: Vectors, confidences: Sequence[float]
    ) -> None:
        """Takes out the removed keys, then adds or replaces keys; vectors: (len(keys), d), of unit length."""
        for key in removed:
            self._bury(key)
        fresh = []
        for row, key in enumerate(keys):
            position = self._positions.get(key)
            if position is not None and np.array_equal(self._vectors()[position], vectors[row]):
                self._confidences[position] = confidences[row]
            else:
                self._bury(key)
                fresh.append(row)
        if fresh:
            start = len(self._keys)
            self.faiss.add(np.ascontiguousarray(vectors[fresh]))
            self._keys = np.concatenate([self._keys, np.asarray([keys[row] for row in fresh], np.int64)])
            self._alive = np.concatenate([self._alive, np.ones(len(fresh), np.bool_)])
            added = np.asarray([confidences[row] for row in fresh], np.float64)
            self._confidences = np.concatenate([self._confidences, added])
            self._positions.update({keys[row]: start + offset for offset, row in enumerate(fresh)})
        self._ceiling = float(self._confidences[self._alive].max(initial=0.0)) or 1.0

    def nearest(self, question: Vectors, k: int) -> list[Neighbour]:
        """The k best facts by S/C, best first (Learn to Refuse, eq. 2); fewer where the scope has fewer.

        In a graph, every fact beyond the neighbours fetched has an S no less than theirs and a C no higher than the
        scope's highest, so once that quotient reaches the k-th best S/C, nothing better is left to find.
        """
        depth = max(FIRST_FETCH, 2 * k)
        while not self._is_exact and depth <= min(LAST_FETCH, len(self._keys)):
            distances, positions = self._search(question, depth)
            if len(positions) < depth:
                break
            alive = self._alive[positions]
            found = self._best(distances[alive], positions[alive], k)
            if len(found) == k and distances[-1] / self._ceiling >= found[-1].distance / found[-1].confidence:
                return found
            depth *= GROWTH
        return self._nearest_of_all(question, k)

    def closest(self, question: Vectors, n: int) -> list[Neighbour]:
        """The n facts of least distance S, nearest first, whatever their confidence."""
        distances, positions = self._search(question, min(len(self._keys), n + len(self._keys) - len(self)))
        alive = self._alive[positions]
        return [
            Neighbour(int(self._keys[position]), float(distance), float(self._confidences[position]))
            for distance, position in zip(distances[alive][:n], positions[alive][:n], strict=True)
        ]

    def successor(self) -> VectorIndex:
        """An empty index of the kind that suits the present size, trained where FAISS wants that."""
        index = VectorIndex(self.kind, len(self))
        if not index.faiss.is_trained:
            live = np.flatnonzero(self._alive)
            step = max(1, len(live) // 100_000)
            index.faiss.train(np.ascontiguousarray(self._vectors()[live[::step]]))
        return index

    def slice(self, start: int, stop: int) -> tuple[list[int], Vectors, list[float]]:
        """Copies of what is alive at the positions from start to stop: keys, vectors, confidences."""
        rows = start + np.flatnonzero(self._alive[start:stop])
        return self._keys[rows].tolist(), self._vectors()[rows], self._confidences[rows].tolist()

    @property
    def positions(self) -> int:
        """How many positions there are, dead ones included."""
        return len(self._keys)

    def catch_up(self, source: VectorIndex, copied: int) -> None:
        """Follows what changed in source since its first `copied` positions were copied here."""
        gone = [key for key in self._positions if key not in source]
        self.apply(gone, *source.slice(copied, source.positions))
        for key, position in self._positions.items():
            self._confidences[position] = source._confidences[source._positions[key]]
        self._ceiling = source._ceiling

    def save(self, folder: Path) -> None:
        """Writes the index into a folder."""
        faiss.write_index(self.faiss, str(folder / "index.faiss"))
        np.savez(folder / "positions.npz", keys=self._keys, alive=self._alive, confidences=self._confidences)

    @classmethod
    def load(cls, folder: Path, kind: IndexKind) -> VectorIndex:
        """Reads what save wrote. Raises OSError, ValueError, KeyError or RuntimeError where it is damaged."""
        index = cls(kind)
        index.faiss = faiss.read_index(str(folder / "index.faiss"))
        index._is_exact = isinstance(index.faiss, faiss.IndexFlat)
        if not index._is_exact:
            kind.tune(index.faiss)
        with np.load(folder / "positions.npz") as arrays:
            index._keys, index._alive = arrays["keys"], arrays["alive"]
            index._confidences = arrays["confidences"]
        if not index.faiss.ntotal == len(index._keys) == len(index._alive) == len(index._confidences):
            raise ValueError("the index and its positions do not belong together")
        if index.faiss.d != kind.dimension:
            raise ValueError("the index has vectors of another length")
        live = np.flatnonzero(index._alive)
        index._positions = dict(zip(index._keys[live].tolist(), live.tolist(), strict=True))
        index._ceiling = float(index._confidences[live].max(initial=0.0)) or 1.0
        return index

    def _bury(self, key: int) -> None:
        position = self._positions.pop(key, None)
        if position is not None:
            self._alive[position] = False

    def _search(self, question: Vectors, depth: int) -> tuple[Vectors, NDArray[np.int64]]:
        if not depth:
            return np.empty(0, np.float32), np.empty(0, np.int64)
        distances, positions = self.faiss.search(question[None], depth)
        found = positions[0] >= 0
        return distances[0][found], positions[0][found]

    def _best(self, distances: Vectors, positions: NDArray[np.int64], k: int) -> list[Neighbour]:
        confidences = self._confidences[positions]
        order = np.lexsort((distances, distances / confidences))[:k]
        return [
            Neighbour(int(self._keys[positions[row]]), float(distances[row]), float(confidences[row])) for row in order
        ]

    def _nearest_of_all(self, question: Vectors, k: int) -> list[Neighbour]:
        distances = np.empty(len(self._keys), np.float32)
        question = np.ascontiguousarray(question, np.float32)
        pointer = faiss.swig_ptr
        vectors = _exact_storage(self.faiss).get_xb()
        kernel: Any = faiss.fvec_L2sqr_ny  # type: ignore[attr-defined]
        kernel(pointer(distances), pointer(question), vectors, self.kind.dimension, len(distances))
        live = np.flatnonzero(self._alive)
        distances = distances[live]
        if k < len(live):
            best = np.argpartition(distances / self._confidences[live], k)[:k]
            live, distances = live[best], distances[best]
        return self._best(distances, live, k)

    def _vectors(self) -> Vectors:
        """Every position's vector, a view of FAISS's own memory: shape (positions, d)."""
        flat = _exact_storage(self.faiss)
        if not flat.ntotal:
            return np.empty((0, self.kind.dimension), np.float32)
        matrix: Vectors = faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d).reshape(flat.ntotal, flat.d)
        return matrix


def _exact_storage(index: Any) -> Any:
    """The flat index inside that holds the vectors as they are, None where there is none."""
    for inside in ("storage", "refine_index"):
        if hasattr(index, inside):
            index = faiss.downcast_index(getattr(index, inside))
    return index if isinstance(index, faiss.IndexFlat) else None
