"""A worker: does what jobs there are, a few items at a time, fairly between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, TypeVar

import orjson
import structlog

from scopegate.domain import JobKind, Overloaded, ScopegateError, Unavailable, UnknownJob
from scopegate.ids import new_id
from scopegate.jobs.store import Finish, JobStore, Over, Start, Turn, Wait
from scopegate.jobs.uncut import uncut
from scopegate.jobs.work import Done, Item, Work
from scopegate.llm.client import LlmFailed

log = structlog.get_logger()
T = TypeVar("T")

# How often is looked for jobs that were cancelled, for unfinished ones, and for those that may be forgotten.
_BEAT_S = 1.0
_SWEEP_S = 2.0
_FORGET_S = 3600.0
# What has ended so many workers is not tried again: an item, a job's start or its end.
_MOST_ATTEMPTS = 30
_TOO_MANY = f"{_MOST_ATTEMPTS} workers ended while they were at it"
_AGAIN_S = 1.0
_MOST_FAILURES = 100
_SAYS_WHY = (ScopegateError, LlmFailed)


@dataclass(slots=True, eq=False)
class _Crew:
    """Those at work here on one job. stages: what each is at, the oldest first. told: what was last told of them."""

    id: str
    work: Work
    spec: Mapping[str, Any]
    hands: set[asyncio.Task[None]] = field(default_factory=set)
    stages: dict[int, str] = field(default_factory=dict)
    told: str | None = None

    def news(self) -> str | None:
        """What the oldest is at, where that was not told yet."""
        now = next(iter(self.stages.values()), None)
        return None if now == self.told else now


class Runner:
    """Works on at most `jobs` jobs and `items` items at once; jobs take turns, item by item.

    What it holds it renews three times in lease_s. keep: ended jobs are removed when they are older; None keeps them.
    only: the one job to work on; None for all.
    """

    def __init__(
        self,
        store: JobStore,
        works: Mapping[JobKind, Work],
        *,
        jobs: int,
        items: int,
        lease_s: float,
        keep: timedelta | None,
        only: str | None = None,
    ) -> None:
        self._store = store
        self._works = works
        self._lease_s = lease_s
        self._keep = keep
        self._only = only
        self._worker = new_id()
        self._jobs = jobs
        self._room = asyncio.Semaphore(jobs)
        self._renewed_at = 0.0
        self._slots = asyncio.Semaphore(items)  # first come, first served: so jobs take turns
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._crews: dict[str, _Crew] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begins to look for unfinished jobs, and works on them."""
        beat_s = min(_BEAT_S, self._lease_s / 3)
        for step, every_s in ((self._sweep, _SWEEP_S), (self._beat, beat_s), (self._forget, _FORGET_S)):
            self._tasks.add(asyncio.create_task(self._again_and_again(step, every_s)))

    async def stop(self) -> None:
        """Stops in the middle, and gives back what it holds."""
        for tasks in (self._tasks, set(self._serving.values())):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def serve(self, job_id: str) -> None:
        """Works on the job until nothing in it is left to take; returns at once where that is being done already."""
        if job_id not in self._serving and self._only in {None, job_id}:
            await asyncio.wait((self._take_up(job_id),))

    def drop(self, job_id: str) -> None:
        """Leaves a job that has ended."""
        if task := self._serving.get(job_id):
            task.cancel()

    # What goes on all the time

    async def _again_and_again(self, step: Callable[[], Coroutine[Any, Any, None]], every_s: float) -> None:
        await self._store.opened()
        while True:
            try:
                await uncut(step())
            except ScopegateError as error:
                log.warning("jobs are not looked after", cause=str(error))
            except Exception:
                log.exception("jobs are not looked after")
            await asyncio.sleep(every_s)

    async def _sweep(self) -> None:
        """Takes up jobs that nobody told of: after a start, a lost message, the end of another worker."""
        room = self._jobs - len(self._crews)
        if room > 0:
            for job_id in await self._store.unfinished(list(self._works), list(self._serving), room, self._only):
                if job_id not in self._serving:
                    self._take_up(job_id)

    async def _beat(self) -> None:
        """Leaves jobs that were cancelled, renews what is held, tells what the jobs are at."""
        if not self._crews:
            return
        for job_id in await self._store.ended(list(self._crews)):
            self.drop(job_id)
        if monotonic() >= self._renewed_at + self._lease_s / 3:
            self._renewed_at = monotonic()
            await self._store.renew(self._worker, list(self._crews))
        news = {crew: stage for crew in self._crews.values() if (stage := crew.news()) is not None}
        await self._store.note({crew.id: stage for crew, stage in news.items()})
        for crew, stage in news.items():
            crew.told = stage

    async def _forget(self) -> None:
        if self._keep is not None:
            await self._store.forget(datetime.now(UTC) - self._keep)

    # A job

    def _take_up(self, job_id: str) -> asyncio.Task[None]:
        task = self._serving[job_id] = asyncio.create_task(self._serve(job_id))
        task.add_done_callback(lambda _: self._serving.pop(job_id))
        return task

    async def _serve(self, job_id: str) -> None:
        with structlog.contextvars.bound_contextvars(job=job_id):
            async with self._room:
                try:
                    kind, spec = await _insist(lambda: self._store.request(job_id))
                    if kind in self._works:
                        await self._work(_Crew(job_id, self._works[kind], spec))
                except UnknownJob:
                    pass
                except (Unavailable, Overloaded) as error:
                    log.warning("left a job, which will be taken up again", cause=str(error))
                except Exception:
                    log.exception("left a job, which will be taken up again")

    async def _work(self, crew: _Crew) -> None:
        """Works on a job until it is over, or what is left is in others' hands; then nobody here is at it any more."""
        self._crews[crew.id] = crew
        try:
            try:
                await self._lead(crew)
            finally:
                await _end(crew.hands)
        except BaseException:
            with suppress(ScopegateError):
                await self._store.give_back(self._worker, crew.id)
            raise
        finally:
            del self._crews[crew.id]

    async def _lead(self, crew: _Crew) -> None:
        """Takes one piece after the other, each as soon as it is the job's turn."""
        while True:
            busy = set(crew.hands)
            await self._slots.acquire()
            taken = False
            try:
                match step := await _insist(lambda: self._store.take(crew.id, self._worker)):
                    case Turn():
                        self._hand(crew, step)
                        taken = True
                    case Start(attempt) | Finish(attempt) if attempt > _MOST_ATTEMPTS:
                        await self._over(crew, None, _TOO_MANY)
                    case Start():
                        await self._begin(crew)
                    case Finish():
                        await self._finish(crew)
            finally:
                if not taken:
                    self._slots.release()
            if isinstance(step, Over) or (isinstance(step, Wait) and not busy):
                return
            if isinstance(step, Wait):
                await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)

    def _hand(self, crew: _Crew, turn: Turn) -> None:
        hand = asyncio.create_task(self._do(crew, turn))
        crew.hands.add(hand)
        hand.add_done_callback(crew.hands.discard)
        hand.add_done_callback(lambda _: self._slots.release())

    async def _begin(self, crew: _Crew) -> None:
        try:
            found = [Item(item.key, _json(item.body)) for item in await crew.work.items(crew.spec)]
        except (Unavailable, Overloaded):
            raise
        except Exception as error:  # noqa: BLE001 - it is told
            _logged("a job could not be started", error)
            await self._over(crew, None, _sentence(error))
            return
        log.info("job started", items=len(found))
        await _insist(lambda: self._store.begin(crew.id, self._worker, found))

    async def _do(self, crew: _Crew, turn: Turn) -> None:
        def stage(text: str) -> None:
            crew.stages[turn.position] = text

        async def do() -> Done:
            done = await crew.work.do(crew.spec, turn.item, stage)
            return Done(*map(_json, (done.rows, done.counts, done.notes)))

        done, error = Done((), {"given_up": 1}), None
        try:
            if turn.attempt > _MOST_ATTEMPTS:
                error = _TOO_MANY
            else:
                done = await _twice(do)
        except Exception as failed:  # noqa: BLE001 - it is told
            _logged("an item failed", failed, item=turn.item.key)
            error = _sentence(failed)
        finally:
            crew.stages.pop(turn.position, None)
        await _insist(lambda: self._store.commit(crew.id, self._worker, turn, done, error))

    async def _finish(self, crew: _Crew) -> None:
        done = [one async for part in self._store.result(crew.id) for one in part]
        failed, first = await self._store.failures(crew.id, _MOST_FAILURES)

        async def summarise() -> dict[str, Any]:
            summary: dict[str, Any] = _json(await crew.work.finish(crew.spec, done))
            return summary

        summary: dict[str, Any] | None = None
        error = None
        if failed and not any(one.rows for one in done):
            error = f"nothing came of {len(done)} items, and {failed} of them failed; the first: {first[0][1]}"
        try:
            summary = await _twice(summarise)
        except (Unavailable, Overloaded):
            raise
        except Exception as problem:  # noqa: BLE001 - it is told
            _logged("a job's summary could not be made", problem)
            error = _sentence(problem)
        else:
            failures = [{"item": key, "error": why} for key, why in first]
            summary |= {"items": len(done), "given_up": failed, "failures": failures}
        await self._over(crew, summary, error)

    async def _over(self, crew: _Crew, summary: dict[str, Any] | None, error: str | None) -> None:
        log.info("job ended", error=error)
        await _insist(lambda: self._store.end(crew.id, self._worker, summary, error))


async def _end(hands: set[asyncio.Task[None]]) -> None:
    for hand in hands:
        hand.cancel()
    await asyncio.gather(*hands, return_exceptions=True)


async def _insist(action: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The action's result, as soon as the database takes part; until then it is tried again."""
    while True:
        try:
            return await uncut(action())
        except (Unavailable, Overloaded) as error:
            log.warning("the database keeps a job waiting", cause=str(error))
            await asyncio.sleep(_AGAIN_S)


async def _twice(action: Callable[[], Awaitable[T]]) -> T:
    """The action's result, at its second try at the latest. Raises what that raises."""
    try:
        return await action()
    except Exception as error:  # noqa: BLE001 - whatever it was, it may have passed
        log.info("something failed and is tried once more", cause=_sentence(error))
        await asyncio.sleep(_AGAIN_S)
        return await action()


def _json(value: Any) -> Any:
    """As every database and every reader of JSON takes it: no NaN, no lone surrogates. Raises TypeError for those."""
    return orjson.loads(orjson.dumps(value))


def _logged(event: str, error: Exception, **values: str) -> None:
    """What says why in a sentence is no fault of ours, and needs no trace."""
    if isinstance(error, _SAYS_WHY):
        log.info(event, cause=str(error), **values)
    else:
        log.exception(event, **values)


def _sentence(error: Exception) -> str:
    if isinstance(error, _SAYS_WHY):
        return str(error)
    return "the service failed at this; its log tells more"
