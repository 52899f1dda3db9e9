"""Jobs, as those who ask for them see them: made, looked at, followed, cancelled."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import orjson

from scopegate.domain import Conflict, Job, JobKind, JobStatus, Page
from scopegate.jobs.queue import Queue
from scopegate.jobs.runner import Runner
from scopegate.jobs.store import JobStore, Seen
from scopegate.jobs.watch import Watch
from scopegate.jobs.work import Done, Item, Work
from scopegate.knowledge.database import Database
from scopegate.settings import Settings


class Jobs:
    """Work in the background. works: what can be done here, by kind; lacking: why another kind cannot.

    Raises Invalid for a Redis URL that makes no sense.
    """

    def __init__(self, settings: Settings, database: Database, works: Mapping[JobKind, Work], lacking: str) -> None:
        self._settings = settings
        self._works = works
        self._lacking = lacking
        self._store = JobStore(database, settings.job_lease_s)
        self._watch = Watch(self._store, settings.job_listeners)
        self._runner: Runner | None = None
        self._queue = Queue(
            settings.redis_url, self._serve, at_once=settings.job_parallel, reclaim_s=2 * settings.job_lease_s
        )
        self._telling: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Lock()

    @asynccontextmanager
    async def working(self, only: str | None = None) -> AsyncIterator[None]:
        """Works on jobs while the context lasts, on all or on one, unless SCOPEGATE_JOB_ITEMS is 0."""
        settings = self._settings
        if settings.job_items:
            self._runner = Runner(
                self._store,
                self._works,
                jobs=settings.job_parallel,
                items=settings.job_items,
                lease_s=settings.job_lease_s,
                keep=timedelta(days=settings.job_retention_days) if settings.job_retention_days else None,
                only=only,
            )
            self._runner.start()
            if only is None:
                self._queue.listen()
        try:
            yield
        finally:
            await self.stop()
            await asyncio.gather(*self._telling, return_exceptions=True)
            await self._queue.close()

    async def stop(self) -> None:
        """Ends the listening and the work, and gives back what is in hand; may be called again."""
        self._watch.close()
        async with self._stopping:
            runner, self._runner = self._runner, None
            await self._queue.hush()
            if runner is not None:
                await runner.stop()

    async def submit(
        self, kind: JobKind, spec: Mapping[str, Any], idempotency_key: str | None = None
    ) -> tuple[Job, bool]:
        """Makes a job, or finds the one that the key has made already; returns it, and whether it is new.

        spec: JSON. Raises Conflict where this service cannot do the kind, or where the key's job was asked for with
        something else; Overloaded.
        """
        if kind not in self._works:
            raise Conflict(self._lacking)
        asked = orjson.dumps([kind, spec], option=orjson.OPT_SORT_KEYS)
        digest = hashlib.sha256(asked).digest()
        job, new = await self._store.add(kind, spec, digest, idempotency_key, self._settings.job_queue)
        if new:
            telling = asyncio.create_task(self._queue.tell(job.id))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)
        return job, new

    async def job(self, job_id: str) -> Job:
        """The job. Raises UnknownJob."""
        return await self._store.job(job_id)

    async def spec(self, job_id: str) -> tuple[JobKind, Mapping[str, Any]]:
        """What was asked for. Raises UnknownJob."""
        return await self._store.request(job_id)

    async def jobs(self, limit: int, cursor: str | None, status: JobStatus | None, kind: JobKind | None) -> Page[Job]:
        """Jobs, the latest first."""
        return await self._store.jobs(limit, cursor, status, kind)

    def follow(self, job_id: str) -> AsyncGenerator[Seen, None]:
        """The job now and after each change, until it has ended or this stops. Raises UnknownJob, Overloaded."""
        return self._watch.job(job_id)

    def result(self, job_id: str) -> AsyncIterator[list[Done]]:
        """What came of the items that are finished so far, some at a time. Raises UnknownJob."""
        return self._store.result(job_id)

    def finished(self, job_id: str) -> AsyncIterator[list[Item]]:
        """The items that are finished so far, some at a time. Raises UnknownJob."""
        return self._store.finished(job_id)

    async def cancel(self, job_id: str) -> Job:
        """Ends the job where it is; what is finished stays. Raises UnknownJob."""
        job = await self._store.cancel(job_id)
        if self._runner is not None:
            self._runner.drop(job_id)
        return job

    async def resume(self, job_id: str) -> Job:
        """Has an ended job go on where it failed or was cancelled; what is finished stays. Raises UnknownJob."""
        return await self._store.resume(job_id)

    async def _serve(self, job_id: str) -> None:
        if self._runner is not None:
            await self._runner.serve(job_id)
