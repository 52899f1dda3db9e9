"""One scope as this process sees it: its facts in memory, searchable, following the truth in SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import numpy as np
from aiorwlock import RWLock
from numpy.typing import NDArray

from scopegate.domain import Evidence, Scope
from scopegate.knowledge.index import IndexKind, Neighbour, VectorIndex
from scopegate.knowledge.snapshot import Record, Snapshot, Snapshots
from scopegate.knowledge.store import ScopeReader, StoredFact
from scopegate.words import WordCounts

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

# So many vectors enter a graph at a time, some tens of milliseconds, with searches let through in between.
STEP = 128
SNAPSHOT_AFTER = 10_000
# An exhaustive search of so few facts takes less time than handing it to a thread.
INLINE = 4_000


class ScopeView:
    """The facts of one incarnation of a scope, up to a revision."""

    def __init__(self, scope: Scope, kind: IndexKind, snapshots: Snapshots, lookups: Executor) -> None:
        self.scope = scope
        self.revision = -1
        self.counts = WordCounts()
        self._index = VectorIndex(kind)
        self._records: dict[int, Record] = {}
        self._snapshots = snapshots
        self._lookups = lookups
        self._unsaved = 0
        self._rebuilding = False
        # Searches read under the lock; whoever changes something holds _changing too, and takes the lock's other side
        # only for the moment of the change, since a waiting writer keeps later readers out.
        self._lock = RWLock(fast=True)
        self._changing = asyncio.Lock()
        self._advanced = asyncio.Event()
        self._at_work: set[asyncio.Future[Any]] = set()

    def __len__(self) -> int:
        return len(self._records)

    # Asking

    async def nearest(self, question: NDArray[np.float32], k: int) -> tuple[list[Evidence], int]:
        """The k best facts by S/C, best first, and the revision that they are of."""

        def evidence(neighbours: Sequence[Neighbour]) -> tuple[list[Evidence], int]:
            return [self._evidence(neighbour) for neighbour in neighbours], self.revision

        if self._index.positions <= INLINE:
            async with self._lock.reader:
                return evidence(self._index.nearest(question, k))
        return await self._finished(self._looked_up(lambda: self._index.nearest(question, k), evidence))

    async def closest(self, question: NDArray[np.float32], n: int) -> list[int]:
        """Keys of the n facts of least distance S, nearest first."""
        search = self._looked_up(
            lambda: self._index.closest(question, n), lambda found: [neighbour.key for neighbour in found]
        )
        return await self._finished(search)

    async def advanced(self, timeout_s: float) -> None:
        """Waits until the view takes over a change or another stands in its place, or as long as given."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._advanced.wait()

    async def _looked_up(self, search: Callable[[], T], use: Callable[[T], R]) -> R:
        async with self._lock.reader:
            return use(await asyncio.get_running_loop().run_in_executor(self._lookups, search))

    def _evidence(self, neighbour: Neighbour) -> Evidence:
        record = self._records[neighbour.key]
        ratio = neighbour.distance / neighbour.confidence
        return Evidence(record.id, record.text, neighbour.confidence, neighbour.distance, ratio, record.source)

    async def _finished(self, work: Coroutine[Any, Any, R]) -> R:
        """The result of work that holds a lock around a thread.

        A caller that is cancelled leaves it to finish: the thread goes on whatever happens, and must keep its lock.
        """
        task = asyncio.ensure_future(work)
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)
        return await asyncio.shield(task)

    async def settled(self) -> None:
        """Waits until no thread works on the view any more."""
        await asyncio.gather(*self._at_work, return_exceptions=True)

    # Following

    async def restore(self, reader: ScopeReader) -> None:
        """Starts from a snapshot where one fits what the reader sees."""
        snapshot = await asyncio.to_thread(self._snapshots.load, self.scope.incarnation, self._index.kind)
        if snapshot and reader.reaches(snapshot.incarnation, snapshot.revision):
            self._index, self._records, self.revision = snapshot.index, snapshot.records, snapshot.revision
            await asyncio.to_thread(self._recount, [], self._records.values())

    def can_follow(self, reader: ScopeReader) -> bool:
        """Whether the reader tells all that has changed since; else a new view must be made."""
        return reader.reaches(self.scope.incarnation, self.revision)

    async def follow(self, reader: ScopeReader) -> None:
        """Takes over every change up to the reader's revision; searches see all of it, or nothing yet."""
        async with self._changing:
            removed = await reader.removed(self.revision) if self.revision >= 0 else []
            staged: dict[int, int] = {}
            facts: list[StoredFact] = []
            async for chunk in reader.changed(self.revision):
                for start in range(0, len(chunk), STEP):
                    part = chunk[start : start + STEP]
                    staged |= await self._finished(self._changed(self._stage, part))
                facts += [replace(fact, vector=b"") for fact in chunk]
            await self._finished(self._shown(reader.scope, removed, staged, facts))

    async def _shown(
        self, scope: Scope, removed: Sequence[int], staged: dict[int, int], facts: Sequence[StoredFact]
    ) -> None:
        before = [self._records[key] for key in (*removed, *staged) if key in self._records]
        async with self._lock.writer:
            await asyncio.to_thread(self._show, removed, staged, facts)
            self.scope, self.revision = scope, scope.revision
        self._unsaved += len(removed) + len(facts)
        await asyncio.to_thread(self._recount, before, [self._records[fact.key] for fact in facts])
        self.wake()

    def wake(self) -> None:
        """Lets those who wait for a change look again."""
        self._advanced.set()
        self._advanced = asyncio.Event()

    async def _read(self, read: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        async with self._lock.reader:
            return await asyncio.to_thread(read, *arguments, **named)

    async def _changed(self, change: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        async with self._lock.writer:
            return await asyncio.to_thread(change, *arguments, **named)

    def _stage(self, facts: Sequence[StoredFact]) -> dict[int, int]:
        vectors = np.frombuffer(b"".join(fact.vector for fact in facts), "<f4").reshape(len(facts), -1)
        return self._index.stage([fact.key for fact in facts], vectors, [fact.confidence for fact in facts])

    def _show(self, removed: Sequence[int], staged: dict[int, int], facts: Sequence[StoredFact]) -> None:
        self._index.show(removed, staged, {fact.key: fact.confidence for fact in facts})
        for key in removed:
            self._records.pop(key, None)
        for fact in facts:
            self._records[fact.key] = Record(fact.id, fact.text, fact.source)

    def _recount(self, gone: Iterable[Record], come: Iterable[Record]) -> None:
        for record in gone:
            self.counts.remove(record.text)
        for record in come:
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
            source = self._index
            successor = await self._finished(self._read(source.successor))
            copied: dict[int, int] = {}
            while len(lacking := await self._finished(self._read(source.lacking, copied))) > STEP:
                places = list(lacking.items())
                for start in range(0, len(places), STEP):
                    part = dict(places[start : start + STEP])
                    vectors, confidences = await self._finished(self._read(source.copy, list(part.values())))
                    await asyncio.to_thread(successor.apply, [], list(part), vectors, confidences)
                    copied |= part
            async with self._changing:
                await self._finished(self._changed(self._succeed, source, successor, copied))
        finally:
            self._rebuilding = False

    def _succeed(self, source: VectorIndex, successor: VectorIndex, copied: dict[int, int]) -> None:
        last = source.lacking(copied)
        successor.apply([], list(last), *source.copy(list(last.values())))
        successor.agree(source)
        self._index = successor

    @property
    def wants_snapshot(self) -> bool:
        """Whether so much has changed since the last snapshot that a start would take long."""
        return self._unsaved >= max(SNAPSHOT_AFTER, len(self) // 4)

    async def save(self) -> None:
        """Writes a snapshot, where anything has changed since the last; searches go on. Raises OSError."""
        async with self._changing:
            if self._unsaved and self.revision >= 0:
                snapshot = Snapshot(self.scope.incarnation, self.revision, self._index, self._records)
                await self._finished(asyncio.to_thread(self._snapshots.save, snapshot))
                self._unsaved = 0

    def forget(self) -> None:
        """Removes its snapshots: the scope is no more."""
        self._snapshots.drop()
