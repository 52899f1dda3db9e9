"""A scope's vectors in FAISS: searched exhaustively while few, by a graph when many; the k best by S/C from either."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

    A fact has a position in FAISS for each vector it ever had here; the last one, once shown, is alive.
    """

    def __init__(self, kind: IndexKind, size: int = 0) -> None:
        self.kind = kind
        self.faiss = kind.make(size)
        self._is_exact = isinstance(self.faiss, faiss.IndexFlat)
        # Longer than there are positions, so that adding a few to many copies nothing.
        self._keys = np.zeros(0, np.int64)
        self._alive = np.zeros(0, np.bool_)
        self._confidences = np.zeros(0, np.float64)  # as stored: a verdict quotes them
        self._positions: dict[int, int] = {}
        self._ceiling = 1.0

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, key: int) -> bool:
        return key in self._positions

    @property
    def positions(self) -> int:
        """How many positions there are, dead ones included."""
        return int(self.faiss.ntotal)

    @property
    def wants_rebuild(self) -> bool:
        """Whether it has outgrown exhaustive search, or holds more of the dead than of the living."""
        dead = self.positions - len(self)
        return dead > max(FEW_DEAD, len(self)) or (self._is_exact and len(self) > self.kind.exact_limit)

    def stage(self, keys: Sequence[int], vectors: Vectors, confidences: Sequence[float]) -> dict[int, int]:
        """Takes in vectors, (len(keys), d) of unit length, unseen by searches; returns each key's position to show.

        A key whose vector is here already keeps its position.
        """
        known = self._positions
        staged = {}
        fresh = []
        for row, key in enumerate(keys):
            if key in known and np.array_equal(self._vectors()[known[key]], vectors[row]):
                staged[key] = known[key]
            else:
                fresh.append(row)
        if fresh:
            start = self.positions
            stop = start + len(fresh)
            self._reserve(stop)
            self.faiss.add(np.ascontiguousarray(vectors[fresh]))
            self._keys[start:stop] = [keys[row] for row in fresh]
            self._confidences[start:stop] = [confidences[row] for row in fresh]
            staged.update((keys[row], start + offset) for offset, row in enumerate(fresh))
        return staged

    def show(self, removed: Iterable[int], staged: Mapping[int, int], confidences: Mapping[int, float]) -> None:
        """Makes staged positions those of their keys, with these confidences, and removes keys; all at once."""
        for key in (*removed, *staged):
            position = self._positions.pop(key, None)
            if position is not None:
                self._alive[position] = False
        for key, position in staged.items():
            self._alive[position] = True
            self._confidences[position] = confidences[key]
        self._positions.update(staged)
        self._set_ceiling()

    def apply(
        self, removed: Iterable[int], keys: Sequence[int], vectors: Vectors, confidences: Sequence[float]
    ) -> None:
        """Stages and shows."""
        staged = self.stage(keys, vectors, confidences)
        self.show(removed, staged, dict(zip(keys, confidences, strict=True)))

    def nearest(self, question: Vectors, k: int) -> list[Neighbour]:
        """The k best facts by S/C, best first (Learn to Refuse, eq. 2); fewer where the scope has fewer.

        In a graph, every fact beyond the neighbours fetched has an S no less than theirs and a C no higher than the
        scope's highest, so once that quotient reaches the k-th best S/C, nothing better is left to find.
        """
        depth = max(FIRST_FETCH, 2 * k)
        while not self._is_exact and depth <= min(LAST_FETCH, self.positions):
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
        distances, positions = self._search(question, min(self.positions, n + self.positions - len(self)))
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

    def lacking(self, copied: Mapping[int, int]) -> dict[int, int]:
        """The keys, with their positions, that are not among those copied from these positions."""
        return dict(self._positions.items() - copied.items())

    def copy(self, positions: Sequence[int]) -> tuple[Vectors, list[float]]:
        """Copies of the vectors and confidences at the positions."""
        return self._vectors()[positions], self._confidences[positions].tolist()

    def agree(self, source: VectorIndex) -> None:
        """Drops what source has not, and takes over its confidences; every key of source is here."""
        self.show(self._positions.keys() - source._positions.keys(), {}, {})
        own = np.fromiter(self._positions.values(), np.int64, len(self))
        theirs = np.fromiter(map(source._positions.__getitem__, self._positions), np.int64, len(self))
        self._confidences[own] = source._confidences[theirs]
        self._set_ceiling()

    def save(self, folder: Path) -> None:
        """Writes the index into a folder."""
        faiss.write_index(self.faiss, str(folder / "index.faiss"))
        held = slice(self.positions)
        np.savez(
            folder / "positions.npz",
            keys=self._keys[held],
            alive=self._alive[held],
            confidences=self._confidences[held],
        )

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
        index._set_ceiling()
        return index

    def _reserve(self, positions: int) -> None:
        missing = positions - len(self._keys)
        if missing > 0:
            extra = max(missing, len(self._keys))
            self._keys = np.concatenate([self._keys, np.zeros(extra, np.int64)])
            self._alive = np.concatenate([self._alive, np.zeros(extra, np.bool_)])
            self._confidences = np.concatenate([self._confidences, np.zeros(extra, np.float64)])

    def _set_ceiling(self) -> None:
        self._ceiling = float(self._confidences[self._alive].max(initial=0.0)) or 1.0

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
        distances = np.empty(self.positions, np.float32)
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
