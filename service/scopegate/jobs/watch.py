"""Progress for those who listen: one look into SQL for all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator

import structlog

from scopegate.domain import Overloaded, ScopegateError, UnknownJob
from scopegate.jobs.store import JobStore, Seen
from scopegate.jobs.uncut import uncut

log = structlog.get_logger()

_LOOK_S = 0.5


class Watch:
    """Follows jobs, for at most `most` listeners."""

    def __init__(self, store: JobStore, most: int) -> None:
        self._store = store
        self._most = most
        self._watched: Counter[str] = Counter()
        self._seen: dict[str, Seen | None] = {}
        self._looked = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    def close(self) -> None:
        """Ends all that follow jobs."""
        self._closed = True
        self._looked.set()

    async def job(self, job_id: str) -> AsyncGenerator[Seen, None]:
        """The job as it is now, and as it is after each change, until it has ended or the watch is closed.

        Changes in a row may be one. Raises UnknownJob, also where it is removed meanwhile; Overloaded.
        """
        if self._watched.total() >= self._most:
            raise Overloaded(f"{self._most} listeners follow jobs already; try again later")
        self._watched[job_id] += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            seen = (await self._store.seen([job_id])).get(job_id)
            version = -1
            while not self._closed:
                if seen is None:
                    raise UnknownJob(f"there is no job {job_id!r}")
                if seen.version > version:
                    version = seen.version
                    yield seen
                    if seen.job.finished_at is not None:
                        return
                await self._looked.wait()
                seen = self._seen.get(job_id, seen)  # a look that began before this listener came knows nothing of it
        finally:
            self._watched[job_id] -= 1
            self._watched += Counter()  # without those that nobody watches
            if not self._watched and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                watched = list(self._watched)
                found = await uncut(self._store.seen(watched))
            except ScopegateError as error:
                log.warning("listeners are told nothing of their jobs", cause=str(error))
                continue
            except Exception:
                log.exception("listeners are told nothing of their jobs")
                continue
            self._seen = {job_id: found.get(job_id) for job_id in watched}
            self._looked.set()
            self._looked = asyncio.Event()
