"""The truth about jobs, in SQL: what there is, who holds which piece of it, and what came of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, exists, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from scopegate.domain import Conflict, Job, JobKind, JobProgress, JobStatus, Overloaded, Page, UnknownJob
from scopegate.ids import new_id
from scopegate.jobs import schema
from scopegate.jobs.work import Done, Item
from scopegate.knowledge.database import Database

_ROWS = 100
_OPEN = (JobStatus.QUEUED, JobStatus.RUNNING)
# The pace is a mean of about so many items.
_PACE_OF = 10

_jobs, _items = schema.jobs.c, schema.items.c
_SHOWN = [column for column in schema.jobs.c if column.name not in {"spec", "digest", "idempotency_key"}]


@dataclass(frozen=True, slots=True)
class Start:
    """The job's items are to be found out. attempt: as with a Turn."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Turn:
    """An item is to be done. attempt: how often it was taken and not given back, this time included; at: when."""

    item: Item
    position: int
    attempt: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Finish:
    """All items are done, and the summary is to be made. attempt: as with a Turn."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Wait:
    """What is left is in other hands."""


@dataclass(frozen=True, slots=True)
class Over:
    """The job has ended, or is gone."""


Step = Start | Turn | Finish | Wait | Over


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as a listener sees it; version grows with each change."""

    job: Job
    version: int


class JobStore:
    """Jobs in a database. A worker holds what it takes for lease_s, unless it renews that, and nobody else may have it.

    Clocks of workers on several hosts must agree to within a few seconds.
    """

    def __init__(self, database: Database, lease_s: float) -> None:
        self._database = database
        self._lease = timedelta(seconds=lease_s)
        # Writers of a job wait for its row one after the other; here they do so without a connection each.
        self._one_writer = asyncio.Lock()

    async def opened(self) -> None:
        """Waits until the database has the tables."""
        await self._database.opened.wait()

    # For those who ask for jobs
    async def add(
        self, kind: JobKind, spec: Mapping[str, Any], digest: bytes, idempotency_key: str | None, most: int
    ) -> tuple[Job, bool]:
        """Adds a job, or finds the one that the key has made already; returns it, and whether it is new.

        most: unfinished jobs there may be. Raises Conflict where the key's job was asked for with something else,
        Overloaded.
        """
        row = {
            "id": new_id(),
            "kind": kind,
            "status": JobStatus.QUEUED,
            "spec": spec,
            "digest": digest,
            "idempotency_key": idempotency_key,
            "version": 1,
            "done": 0,
            "attempts": 0,
            "created_at": datetime.now(UTC),
        }
        try:
            async with self._writing() as connection:
                known = await _by_key(connection, idempotency_key)
                if known is None:
                    waiting = select(func.count()).select_from(schema.jobs).where(_jobs.status.in_(_OPEN))
                    if (await connection.execute(waiting)).scalar_one() >= most:
                        raise Overloaded(f"{most} jobs are unfinished already; try again later")
                    await connection.execute(insert(schema.jobs).values(**row))
        except IntegrityError:  # the same key, at the same time
            async with self._database.read() as connection:
                known = await _by_key(connection, idempotency_key)
        if known is None:
            return await self.job(str(row["id"])), True
        if known.digest != digest:
            raise Conflict("this Idempotency-Key was used for another request")
        return await self.job(known.id), False

    async def job(self, job_id: str) -> Job:
        """The job. Raises UnknownJob."""
        seen = await self.seen([job_id])
        if job_id not in seen:
            raise UnknownJob(f"there is no job {job_id!r}")
        return seen[job_id].job

    async def seen(self, ids: Collection[str]) -> dict[str, Seen]:
        """Those jobs that are there, by id."""
        async with self._database.read() as connection:
            rows = await connection.execute(select(*_SHOWN).where(_jobs.id.in_(ids)))
            return {row.id: Seen(_job(row), row.version) for row in rows}

    async def jobs(self, limit: int, cursor: str | None, status: JobStatus | None, kind: JobKind | None) -> Page[Job]:
        """Jobs, the latest first, those made before the cursor's; without the lists in summaries, which may be long."""
        query = select(*_SHOWN).order_by(_jobs.id.desc()).limit(limit + 1)
        if cursor is not None:
            query = query.where(_jobs.id < cursor)
        if status is not None:
            query = query.where(_jobs.status == status)
        if kind is not None:
            query = query.where(_jobs.kind == kind)
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
        found = [_in_list(_job(row)) for row in rows[:limit]]
        return Page(found, found[-1].id if len(rows) > limit else None)

    async def cancel(self, job_id: str) -> Job:
        """Ends the job where it is; one that has ended stays as it is. Raises UnknownJob."""
        now = datetime.now(UTC)
        ended = {"status": JobStatus.CANCELLED, "finished_at": now, "stage": None, "worker": None}
        async with self._writing() as connection:
            await connection.execute(
                update(schema.jobs)
                .where(_jobs.id == job_id, _jobs.status.in_(_OPEN))
                .values(**ended, version=_jobs.version + 1)
            )
        return await self.job(job_id)

    async def resume(self, job_id: str) -> Job:
        """Opens a job that has ended where something failed or was left; one that is whole, or goes on, stays as it is.

        Items that failed are to be done anew. Raises UnknownJob.
        """
        async with self._writing() as connection:
            query = select(*_SHOWN).where(_jobs.id == job_id, _jobs.finished_at.is_not(None)).with_for_update()
            job = (await connection.execute(query)).one_or_none()
            if job is not None:
                failed = and_(_items.job == job.key, _items.error.is_not(None))
                anew = {"state": "waiting", "attempts": 0, "rows": None, "counts": None, "notes": None, "error": None}
                again = (await connection.execute(update(schema.items).where(failed).values(**anew))).rowcount
                if again or job.status != JobStatus.SUCCEEDED:
                    status = JobStatus.QUEUED if job.total is None else JobStatus.RUNNING
                    ended = {"finished_at": None, "summary": None, "error": None, "attempts": 0}
                    pace = {"pace_s": None, "paced_at": datetime.now(UTC)}
                    await _change(connection, job, status=status, done=job.done - again, **ended, **pace)
        return await self.job(job_id)

    async def result(self, job_id: str) -> AsyncIterator[list[Done]]:
        """What came of the finished items, in the order of the items, some at a time. Raises UnknownJob."""
        async for rows in self._finished(job_id, _items.rows, _items.counts, _items.notes):
            yield [Done(tuple(row.rows), row.counts, tuple(row.notes)) for row in rows]

    async def finished(self, job_id: str) -> AsyncIterator[list[Item]]:
        """The finished items in order, some at a time. Raises UnknownJob."""
        async for rows in self._finished(job_id, _items.key, _items.body):
            yield [Item(row.key, row.body) for row in rows]

    async def _finished(self, job_id: str, *columns: ColumnElement[Any]) -> AsyncIterator[Sequence[Row[Any]]]:
        last = -1
        while True:
            async with self._database.read() as connection:
                these = and_(_items.job == await _key(connection, job_id), _items.state == "done")
                query = select(_items.position, *columns).where(these, _items.position > last)
                rows = (await connection.execute(query.order_by(_items.position).limit(_ROWS))).all()
            if not rows:
                return
            yield rows
            last = rows[-1].position

    async def failures(self, job_id: str, most: int) -> tuple[int, list[tuple[str, str]]]:
        """How many items failed, and the first of them: key and error. Raises UnknownJob."""
        async with self._database.read() as connection:
            failed = and_(_items.job == await _key(connection, job_id), _items.error.is_not(None))
            count = (
                await connection.execute(select(func.count()).select_from(schema.items).where(failed))
            ).scalar_one()
            query = select(_items.key, _items.error).where(failed).order_by(_items.position).limit(most)
            return count, [(row.key, row.error) for row in await connection.execute(query)]

    async def forget(self, before: datetime) -> int:
        """Removes jobs that ended before; returns how many."""
        async with self._writing() as connection:
            gone = await connection.execute(delete(schema.jobs).where(_jobs.finished_at < before))
            return gone.rowcount

    # For workers

    async def unfinished(
        self, kinds: Collection[JobKind], besides: Collection[str], most: int, only: str | None = None
    ) -> list[str]:
        """Ids of jobs of these kinds in which there is something to take, the oldest first. only: at most this one."""
        now = datetime.now(UTC)
        whole = and_(or_(_jobs.total.is_(None), _jobs.done == _jobs.total), _free(_jobs, now))
        waiting = exists().where(_items.job == _jobs.key, _items.state == "waiting")
        dropped = exists().where(_items.job == _jobs.key, _items.state == "leased", _items.leased_until < now)
        query = select(_jobs.id).where(
            _jobs.status.in_(_OPEN), _jobs.kind.in_(kinds), _jobs.id.not_in(besides), or_(whole, waiting, dropped)
        )
        if only is not None:
            query = query.where(_jobs.id == only)
        async with self._database.read() as connection:
            return list((await connection.execute(query.order_by(_jobs.key).limit(most))).scalars())

    async def ended(self, ids: Collection[str]) -> set[str]:
        """Those of the jobs that have ended, or are gone."""
        query = select(_jobs.id).where(_jobs.id.in_(ids), _jobs.status.in_(_OPEN))
        async with self._database.read() as connection:
            return set(ids) - set((await connection.execute(query)).scalars())

    async def request(self, job_id: str) -> tuple[JobKind, Mapping[str, Any]]:
        """What was asked for. Raises UnknownJob."""
        async with self._database.read() as connection:
            row = (await connection.execute(select(_jobs.kind, _jobs.spec).where(_jobs.id == job_id))).one_or_none()
        if row is None:
            raise UnknownJob(f"there is no job {job_id!r}")
        return JobKind(row.kind), row.spec

    async def take(self, job_id: str, worker: str) -> Step:
        """The next piece of the job that nobody holds, which this worker holds from now on."""
        now = datetime.now(UTC)
        lease = {"worker": worker, "leased_until": now + self._lease}
        async with self._writing() as connection:
            job = await _locked(connection, job_id)
            if job is None:
                return Over()
            if job.total is None or job.done == job.total:
                if job.worker is not None and job.leased_until >= now:
                    return Wait()
                attempt = job.attempts + 1
                values = lease | {"status": JobStatus.RUNNING, "started_at": job.started_at or now, "attempts": attempt}
                await _change(connection, job, stage="starting" if job.total is None else "finishing", **values)
                return Start(attempt) if job.total is None else Finish(attempt)
            query = select(_items.position, _items.key, _items.body, _items.attempts).where(_items.job == job.key)
            query = query.order_by(_items.position).limit(1)
            row = (await connection.execute(query.where(_items.state == "waiting"))).one_or_none()
            if row is None:
                dropped = query.where(_items.state == "leased", _items.leased_until < now)
                row = (await connection.execute(dropped)).one_or_none()
            if row is None:
                return Wait()
            this = and_(_items.job == job.key, _items.position == row.position)
            values = lease | {"state": "leased", "attempts": row.attempts + 1}
            await connection.execute(update(schema.items).where(this).values(**values))
            return Turn(Item(row.key, row.body), row.position, row.attempts + 1, now)

    async def begin(self, job_id: str, worker: str, found: Sequence[Item]) -> None:
        """Records what there is to do, unless the job has ended or another worker has begun it."""
        async with self._writing() as connection:
            job = await _locked(connection, job_id)
            if job is None or job.total is not None or job.worker != worker:
                return
            rows = [
                {
                    "job": job.key,
                    "position": position,
                    "key": item.key,
                    "body": item.body,
                    "state": "waiting",
                    "attempts": 0,
                }
                for position, item in enumerate(found)
            ]
            if rows:
                await connection.execute(insert(schema.items), rows)
            begun = {"total": len(rows), "paced_at": datetime.now(UTC), "attempts": 0}
            await _change(connection, job, **begun, worker=None, stage=None)

    async def commit(self, job_id: str, worker: str, turn: Turn, done: Done, error: str | None) -> None:
        """Records what became of an item, unless the job has ended or the worker does not hold the item any more."""
        now = datetime.now(UTC)
        async with self._writing() as connection:
            job = await _locked(connection, job_id)
            if job is None:
                return
            held = and_(
                _items.job == job.key,
                _items.position == turn.position,
                _items.state == "leased",
                _items.worker == worker,
                _items.attempts == turn.attempt,
            )
            became = {"rows": done.rows, "counts": done.counts, "notes": done.notes, "error": error}
            changed = await connection.execute(
                update(schema.items).where(held).values(**became, state="done", worker=None)
            )
            if changed.rowcount == 0:
                return
            pace: dict[str, Any] = {}
            if done.rows or error is not None:  # what is skipped takes no time, and tells nothing of the others
                # Not since the last end, where nobody was at work in between.
                lately = (now - max(job.paced_at, turn.at)).total_seconds()
                pace_s = job.pace_s or lately
                pace = {"pace_s": pace_s + (lately - pace_s) / min(job.done + 1, _PACE_OF), "paced_at": now}
            await _change(connection, job, done=job.done + 1, **pace)

    async def end(self, job_id: str, worker: str, summary: Mapping[str, Any] | None, error: str | None) -> None:
        """Records the job's end, a failure where there is an error, unless it has ended or another worker holds it."""
        status = JobStatus.SUCCEEDED if error is None else JobStatus.FAILED
        ended = {"status": status, "summary": summary, "error": error, "finished_at": datetime.now(UTC)}
        async with self._writing() as connection:
            job = await _locked(connection, job_id)
            if job is not None and job.worker == worker:
                await _change(connection, job, **ended, worker=None, stage=None)

    async def note(self, stages: Mapping[str, str]) -> None:
        """Records what jobs are at, by id."""
        for job_id, stage in stages.items():
            # Two workers that each held several jobs would wait for each other.
            async with self._writing() as connection:
                job = await _locked(connection, job_id)
                if job is not None and job.total is not None and job.done < job.total and job.stage != stage:
                    await _change(connection, job, stage=stage)

    async def renew(self, worker: str, ids: Collection[str]) -> None:
        """Prolongs what the worker holds of these jobs."""
        until = datetime.now(UTC) + self._lease
        async with self._writing() as connection:
            await connection.execute(update(schema.jobs).where(_jobs.worker == worker).values(leased_until=until))
        held = and_(_items.state == "leased", _items.worker == worker)
        async with self._writing() as connection:
            await connection.execute(update(schema.items).where(_of(ids), held).values(leased_until=until))

    async def give_back(self, worker: str, job_id: str) -> None:
        """Lets others have what the worker holds of a job, unless that has ended; it does not count as an attempt."""
        free: dict[str, Any] = {"worker": None, "leased_until": None}
        async with self._writing() as connection:
            job = await _locked(connection, job_id)
            if job is None:
                return
            if job.worker == worker:
                back = {"attempts": _jobs.attempts - 1}
                await connection.execute(update(schema.jobs).where(_jobs.key == job.key).values(**free, **back))
            held = and_(_items.job == job.key, _items.state == "leased", _items.worker == worker)
            anew = {"state": "waiting", "attempts": _items.attempts - 1}
            await connection.execute(update(schema.items).where(held).values(**free, **anew))

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[AsyncConnection]:
        async with self._one_writer, self._database.write() as connection:
            yield connection


def _of(ids: Collection[str]) -> ColumnElement[bool]:
    return _items.job.in_(select(_jobs.key).where(_jobs.id.in_(ids)))


def _free(columns: Any, now: datetime) -> ColumnElement[bool]:
    return or_(columns.worker.is_(None), columns.leased_until < now)


async def _key(connection: AsyncConnection, job_id: str) -> int:
    key = (await connection.execute(select(_jobs.key).where(_jobs.id == job_id))).scalar_one_or_none()
    if key is None:
        raise UnknownJob(f"there is no job {job_id!r}")
    return int(key)


async def _by_key(connection: AsyncConnection, idempotency_key: str | None) -> Any:
    if idempotency_key is None:
        return None
    query = select(_jobs.id, _jobs.digest).where(_jobs.idempotency_key == idempotency_key)
    return (await connection.execute(query)).one_or_none()


async def _locked(connection: AsyncConnection, job_id: str) -> Row[Any] | None:
    """The unfinished job's row, locked until the transaction ends; None where there is none."""
    query = select(*_SHOWN).where(_jobs.id == job_id, _jobs.status.in_(_OPEN)).with_for_update()
    return (await connection.execute(query)).one_or_none()


async def _change(connection: AsyncConnection, job: Row[Any], **values: Any) -> None:
    await connection.execute(
        update(schema.jobs).where(_jobs.key == job.key).values(**values, version=_jobs.version + 1)
    )


def _in_list(job: Job) -> Job:
    if job.summary is None:
        return job
    return replace(job, summary={name: value for name, value in job.summary.items() if not isinstance(value, list)})


def _job(row: Row[Any]) -> Job:
    remaining_s = None
    if row.finished_at is None and row.pace_s is not None:
        remaining_s = round(row.pace_s * (row.total - row.done), 1)
    return Job(
        row.id,
        JobKind(row.kind),
        JobStatus(row.status),
        JobProgress(row.done, row.total, row.stage, remaining_s),
        row.created_at,
        row.started_at,
        row.finished_at,
        row.error,
        row.summary,
    )
