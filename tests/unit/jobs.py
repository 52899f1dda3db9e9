"""Work that does next to nothing, for tests of jobs, and jobs on a test's database."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from scopegate.domain import Job, JobKind, Unavailable
from scopegate.jobs import Done, Item, Jobs
from scopegate.knowledge.database import Database
from scopegate.settings import Settings

OpenJobs = Callable[..., AbstractAsyncContextManager[Jobs]]


class Echo:
    """Gives each of spec's texts back after its seconds, and remembers what it was asked for.

    spec: texts; seconds, each takes that; broken, how often a text raises; garbled, texts that come back as what no
    store can keep; hopeless, a word for which no item is even found. away: how often the store is away from a step.
    """

    kind = JobKind.GENERATE

    def __init__(self) -> None:
        self.began: list[str] = []
        self.done: list[tuple[str, float]] = []
        self.cancelled: list[str] = []
        self.summarised = 0
        self.away: Counter[str] = Counter()

    async def items(self, spec: Mapping[str, Any]) -> Sequence[Item]:
        self._needs_store("items")
        if spec.get("hopeless"):
            raise RuntimeError(spec["hopeless"])
        return [Item(text, {"text": text}) for text in spec["texts"]]

    async def do(self, spec: Mapping[str, Any], item: Item, stage: Callable[[str], None]) -> Done:
        self.began.append(item.key)
        stage("echoing")
        try:
            await asyncio.sleep(spec.get("seconds", 0))
        except asyncio.CancelledError:
            self.cancelled.append(item.key)
            raise
        if self.began.count(item.key) <= spec.get("broken", {}).get(item.key, 0):
            raise RuntimeError("out of breath")
        self.done.append((item.key, time.monotonic()))
        text = "\ud800" if item.key in spec.get("garbled", ()) else item.body["text"]
        return Done(({"text": text},), {"echoed": 1})

    async def finish(self, spec: Mapping[str, Any], done: Sequence[Done]) -> Mapping[str, Any]:
        self._needs_store("finish")
        self.summarised += 1
        return {"echoed": sum(one.counts.get("echoed", 0) for one in done)}

    def _needs_store(self, step: str) -> None:
        self.away[step] -= 1
        if self.away[step] >= 0:
            raise Unavailable("the knowledge store does not answer")


@asynccontextmanager
async def jobs_on(settings: Settings, work: Echo, only: str | None = None, **changed: Any) -> AsyncIterator[Jobs]:
    """Jobs as one process would have them, at work."""
    settings = settings.model_copy(update=changed)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    database = Database(settings.sql_url)
    await database.open()
    jobs = Jobs(settings, database, {work.kind: work}, "nobody can do this here")
    try:
        async with jobs.working(only):
            yield jobs
    finally:
        await database.close()


async def ended(jobs: Jobs, job_id: str, within_s: float = 20) -> Job:
    """The job, once it has ended."""
    async with asyncio.timeout(within_s):
        while (job := await jobs.job(job_id)).finished_at is None:
            await asyncio.sleep(0.02)
    return job


async def texts(jobs: Jobs, job_id: str) -> list[str]:
    """What the job has echoed so far."""
    return [row["text"] async for part in jobs.result(job_id) for done in part for row in done.rows]
