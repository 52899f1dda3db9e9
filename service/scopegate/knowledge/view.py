"""One scope as this process sees it: its facts in memory, searchable, following the truth in SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from aiorwlock import RWLock
from numpy.typing import NDArray

from scopegate.domain import Evidence, Scope
from scopegate.knowledge.index import IndexKind, Neighbour, VectorIndex
from scopegate.knowledge.snapshot import Record, Snapshot, Snapshots
from scopegate.knowledge.store import ScopeReader, StoredFact
from scopegate.words import WordCounts

# So many vectors enter a graph at a time, some tens of milliseconds, with searches let through in between.
STEP = 128
COPY = 10_000
SNAPSHOT_AFTER = 10_000


class ScopeView:
    """The facts of one incarnation of a scope, up to a revision."""

    def __init__(self, scope: Scope, kind: IndexKind, snapshots: Snapshots) -> None:
        self.scope = scope
        self.revision = -1
        self.counts = WordCounts()
        self._index = VectorIndex(kind)
        self._records: dict[int, Record] = {}
        self._snapshots = snapshots
        self._unsaved = 0
        self._lock = RWLock()
        self._rebuilding = False

    def __len__(self) -> int:
        return len(self._records)

    # Asking

    async def nearest(self, question: NDArray[np.float32], k: int) -> tuple[list[Evidence], int]:
        """The k best facts by S/C, best first, and the revision that they are of."""
        async with self._lock.reader:
            neighbours = await asyncio.to_thread(self._index.nearest, question, k)
            return [self._evidence(neighbour) for neighbour in neighbours], self.revision

    async def closest(self, question: NDArray[np.float32], n: int) -> list[int]:
        """Keys of the n facts of least distance S, nearest first."""
        async with self._lock.reader:
            return [neighbour.key for neighbour in await asyncio.to_thread(self._index.closest, question, n)]

    def _evidence(self, neighbour: Neighbour) -> Evidence:
        record = self._records[neighbour.key]
        ratio = neighbour.distance / neighbour.confidence
        return Evidence(record.id, record.text, neighbour.confidence, neighbour.distance, ratio, record.source)

    # Following

    async def restore(self, reader: ScopeReader) -> None:
        """Starts from a snapshot where one fits what the reader sees."""
        snapshot = await asyncio.to_thread(self._snapshots.load, self.scope.incarnation, self._index.kind)
        if snapshot and reader.reaches(snapshot.incarnation, snapshot.revision):
            self._index, self._records, self.revision = snapshot.index, snapshot.records, snapshot.revision
            await asyncio.to_thread(self._count)

    def can_follow(self, reader: ScopeReader) -> bool:
        """Whether the reader tells all that has changed since; else a new view must be made."""
        return reader.reaches(self.scope.incarnation, self.revision)

    async def follow(self, reader: ScopeReader) -> None:
        """Takes over every change up to the reader's revision."""
        if self.revision >= 0:
            removed = await reader.removed(self.revision)
            if removed:
                async with self._lock.writer:
                    await asyncio.to_thread(self._apply, removed, [])
        async for facts in reader.changed(self.revision):
            for start in range(0, len(facts), STEP):
                async with self._lock.writer:
                    await asyncio.to_thread(self._apply, [], facts[start : start + STEP])
        self.scope, self.revision = reader.scope, reader.scope.revision

    def _apply(self, removed: Sequence[int], facts: Sequence[StoredFact]) -> None:
        if facts:
            vectors = np.frombuffer(b"".join(fact.vector for fact in facts), "<f4").reshape(len(facts), -1)
            self._index.apply([], [fact.key for fact in facts], vectors, [fact.confidence for fact in facts])
        else:
            self._index.apply(removed, [], np.empty((0, self._index.kind.dimension), np.float32), [])
        for key in (*removed, *(fact.key for fact in facts)):
            record = self._records.pop(key, None)
            if record is not None:
                self.counts.remove(record.text)
        for fact in facts:
            self._records[fact.key] = Record(fact.id, fact.text, fact.source)
            self.counts.add(fact.text)
        self._unsaved += len(removed) + len(facts)

    def _count(self) -> None:
        for record in self._records.values():
            self.counts.add(record.text)

    # Upkeep

    @property
    def wants_rebuild(self) -> bool:
        """Whether another index would serve it better, and none is being made."""
        return self._index.wants_rebuild and not self._rebuilding

    async def rebuild(self) -> None:
        """Makes an index that suits the present size, beside the one that goes on serving."""
        self._rebuilding = True
        try:
            source, copied = self._index, self._index.positions
            successor = await asyncio.to_thread(source.successor)
            for start in range(0, copied, COPY):
                async with self._lock.reader:
                    part = await asyncio.to_thread(source.slice, start, min(start + COPY, copied))
                await asyncio.to_thread(successor.apply, [], *part)
            async with self._lock.writer:
                await asyncio.to_thread(successor.catch_up, source, copied)
                self._index = successor
        finally:
            self._rebuilding = False

    @property
    def wants_snapshot(self) -> bool:
        """Whether so much has changed since the last snapshot that a start would take long."""
        return self._unsaved >= max(SNAPSHOT_AFTER, len(self) // 4)

    async def save(self) -> None:
        """Writes a snapshot, where anything has changed since the last. Raises OSError."""
        if self._unsaved and self.revision >= 0:
            async with self._lock.reader:
                unsaved = self._unsaved
                snapshot = Snapshot(self.scope.incarnation, self.revision, self._index, self._records)
                await asyncio.to_thread(self._snapshots.save, snapshot)
                self._unsaved -= unsaved

    def forget(self) -> None:
        """Removes its snapshots: the scope is no more."""
        self._snapshots.drop()
