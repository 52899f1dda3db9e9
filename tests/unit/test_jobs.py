from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime, timedelta

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from scopegate.domain import Conflict, Invalid, Job, JobKind, JobStatus, Overloaded, StorageFull, UnknownJob
from scopegate.jobs import Done, Jobs
from scopegate.jobs.store import JobStore, Seen, Turn
from scopegate.knowledge.database import Database
from scopegate.knowledge.schema import metadata
from scopegate.settings import Settings
from tests.unit.jobs import Echo, ended, jobs_on, texts

LETTERS = list("abcdefgh")
FAILED_AT = "the service failed at this; its log tells more"


@pytest.fixture
def work() -> Echo:
    return Echo()


@pytest.fixture
async def jobs(settings: Settings, work: Echo) -> AsyncIterator[Jobs]:
    async with jobs_on(settings, work) as jobs:
        yield jobs


async def submit(jobs: Jobs, **spec: object) -> str:
    return (await jobs.submit(JobKind.GENERATE, {"texts": LETTERS} | spec))[0].id


async def test_a_job_gives_each_item_once_in_order_with_a_summary(jobs: Jobs, work: Echo) -> None:
    job = await ended(jobs, await submit(jobs))
    assert (job.status, job.progress.done, job.progress.total) == (JobStatus.SUCCEEDED, 8, 8)
    assert job.summary == {"echoed": 8, "items": 8, "given_up": 0, "failures": []}
    assert job.created_at <= (job.started_at or job.created_at) <= (job.finished_at or job.created_at)
    assert await texts(jobs, job.id) == LETTERS
    assert sorted(work.began) == LETTERS
    assert work.summarised == 1


async def test_a_list_of_jobs_has_no_lists_in_their_summaries(jobs: Jobs) -> None:
    job = await ended(jobs, await submit(jobs))
    (listed,) = (await jobs.jobs(9, None, None, None)).items
    assert listed.summary == {"echoed": 8, "items": 8, "given_up": 0}
    assert job.summary == {**listed.summary, "failures": []}


async def test_what_is_skipped_sets_no_pace(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work, job_items=0) as jobs:
        job_id = await submit(jobs)
    database = Database(settings.sql_url)
    store = JobStore(database, 30)
    await store.take(job_id, "worker")
    await store.begin(job_id, "worker", await work.items({"texts": LETTERS}))

    async def done(what: Done, after_s: float = 0) -> float | None:
        turn = await store.take(job_id, "worker")
        assert isinstance(turn, Turn)
        await asyncio.sleep(after_s)
        await store.commit(job_id, "worker", turn, what, None)
        return (await store.job(job_id)).progress.remaining_s

    skipped, made = Done((), {}), Done(({},), {})
    assert [await done(skipped) for _ in range(3)] == [None] * 3
    await asyncio.sleep(1)  # nobody is at work
    remaining_s = await done(made, 0.2)
    assert remaining_s is not None
    assert 4 * 0.2 <= remaining_s < 4 * 1, "the second in which nobody was at work does not count"
    assert await done(skipped) == pytest.approx(remaining_s * 3 / 4, abs=0.2)
    await database.close()


async def test_a_job_without_items_succeeds(jobs: Jobs) -> None:
    job = await ended(jobs, await submit(jobs, texts=[]))
    assert (job.status, job.progress.total) == (JobStatus.SUCCEEDED, 0)


async def test_what_fails_is_tried_once_more_and_then_told(jobs: Jobs, work: Echo) -> None:
    job = await ended(jobs, await submit(jobs, broken={"b": 1, "d": 9}))
    assert job.status is JobStatus.SUCCEEDED
    assert job.summary is not None
    assert (job.summary["echoed"], job.summary["given_up"]) == (7, 1)
    assert job.summary["failures"] == [{"item": "d", "error": "the service failed at this; its log tells more"}]
    assert (work.began.count("b"), work.began.count("d")) == (2, 2)
    assert await texts(jobs, job.id) == [letter for letter in LETTERS if letter != "d"]


async def test_a_job_of_which_nothing_could_be_done_has_failed(jobs: Jobs) -> None:
    job = await ended(jobs, await submit(jobs, texts=["a"], broken={"a": 9}))
    assert job.status is JobStatus.FAILED
    assert job.error == "nothing came of 1 items, and 1 of them failed; the first: " + FAILED_AT


async def test_what_failed_or_was_left_is_done_where_a_job_is_resumed(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work) as jobs:
        some = await ended(jobs, await submit(jobs, broken={"b": 2}))
        none = await ended(jobs, await submit(jobs, texts=["x"], broken={"x": 2}))
        left = await submit(jobs, texts=["y", "z"], seconds=60)
        await jobs.cancel(left)
        work.began.clear()
        work.began.extend("bbxx")
        for job_id in (some.id, none.id):
            job = await jobs.resume(job_id)
            assert (job.finished_at, job.error, job.summary) == (None, None, None)
            job = await ended(jobs, job_id)
            assert (job.status, job.error) == (JobStatus.SUCCEEDED, None)
            assert job.summary is not None
            assert job.summary["given_up"] == 0
            assert await jobs.resume(job_id) == job
        assert work.began == list("bbxxbx")
        assert await texts(jobs, some.id) == LETTERS
        assert (await jobs.resume(left)).status is not JobStatus.CANCELLED
        while "y" not in work.began:
            await asyncio.sleep(0.02)
        with pytest.raises(UnknownJob):
            await jobs.resume("01KB3YQ4Z8M2N5P7R9T1V3X5Z7")


async def test_a_job_that_cannot_be_started_has_failed(jobs: Jobs) -> None:
    job = await ended(jobs, await submit(jobs, hopeless="a secret"))
    assert (job.status, job.error) == (JobStatus.FAILED, "the service failed at this; its log tells more")


async def test_at_most_so_many_items_are_in_hand_and_jobs_take_turns(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work, job_items=2) as jobs:
        first = await submit(jobs, texts=[f"first {n}" for n in range(20)], seconds=0.02)
        second = await submit(jobs, texts=[f"second {n}" for n in range(20)], seconds=0.02)
        await asyncio.gather(ended(jobs, first), ended(jobs, second))
    order = [name.split()[0] for name, _ in work.done]
    begun = order.index("second")
    shared = order[begun : begun + 16]
    assert 6 <= shared.count("first") <= 10, order


async def test_a_cancelled_job_stops_in_the_middle_and_keeps_what_is_finished(jobs: Jobs, work: Echo) -> None:
    job_id = await submit(jobs, texts=[f"{n}" for n in range(40)], seconds=0.6)
    while len(work.began) < 20:
        await asyncio.sleep(0.02)
    job = await jobs.cancel(job_id)
    assert job.status is JobStatus.CANCELLED
    kept = await texts(jobs, job_id)
    assert 1 <= len(kept) < 40
    await asyncio.sleep(0.5)
    assert work.cancelled
    assert len(work.began) <= 48
    assert await texts(jobs, job_id) == kept
    assert (await jobs.cancel(job_id)).finished_at == job.finished_at


async def test_a_job_cancelled_elsewhere_is_left_within_seconds(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work) as here, jobs_on(settings, Echo(), job_items=0) as elsewhere:
        job_id = await submit(here, texts=["a"], seconds=60)
        while not work.began:
            await asyncio.sleep(0.02)
        await elsewhere.cancel(job_id)
        async with asyncio.timeout(5):
            while not work.cancelled:
                await asyncio.sleep(0.02)


async def test_a_stop_gives_back_what_was_in_hand_and_the_next_start_takes_it_up(
    settings: Settings, work: Echo
) -> None:
    async with jobs_on(settings, work) as jobs:
        job_id = await submit(jobs, seconds=1, texts=[f"{n}" for n in range(32)])
        while len(work.began) < 20:
            await asyncio.sleep(0.02)
    assert work.cancelled
    again = Echo()
    async with jobs_on(settings, again) as jobs:
        job = await ended(jobs, job_id)
        assert await texts(jobs, job_id) == [f"{n}" for n in range(32)]
    assert job.status is JobStatus.SUCCEEDED
    assert set(again.began) >= set(work.cancelled)
    assert len(again.began) < 32


async def test_workers_without_a_queue_between_them_share_a_job(settings: Settings) -> None:
    one, other = Echo(), Echo()
    async with jobs_on(settings, one, job_items=2) as jobs, jobs_on(settings, other, job_items=2):
        job_id = await submit(jobs, texts=[f"{n}" for n in range(60)], seconds=0.2)
        await ended(jobs, job_id)
        assert await texts(jobs, job_id) == [f"{n}" for n in range(60)]
    assert one.began
    assert other.began
    assert len(one.began) + len(other.began) == 60


async def test_only_one_job_is_worked_on_where_one_is_named(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work, job_items=0) as jobs:
        older = [await submit(jobs) for _ in range(8)]
        mine, newer = await submit(jobs), await submit(jobs)
    async with jobs_on(settings, work, only=mine) as jobs:
        await ended(jobs, mine)
        assert {(await jobs.job(other)).status for other in (*older, newer)} == {JobStatus.QUEUED}


async def test_the_same_key_and_request_are_one_job_and_another_request_is_a_conflict(jobs: Jobs) -> None:
    made = await asyncio.gather(*(jobs.submit(JobKind.GENERATE, {"texts": ["a"]}, "key") for _ in range(8)))
    assert len({job.id for job, _ in made}) == 1
    assert [new for _, new in made].count(True) == 1
    with pytest.raises(Conflict):
        await jobs.submit(JobKind.GENERATE, {"texts": ["b"]}, "key")


async def test_a_kind_that_cannot_be_done_says_what_to_set(jobs: Jobs) -> None:
    with pytest.raises(Conflict, match="nobody can do this here"):
        await jobs.submit(JobKind.ENRICH, {})


async def test_unfinished_jobs_are_bounded(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work, job_items=0, job_queue=2) as jobs:
        await submit(jobs)
        await submit(jobs)
        with pytest.raises(Overloaded):
            await submit(jobs)


async def test_jobs_are_listed_latest_first_by_status_and_kind(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work, job_items=0) as jobs:
        made = [await submit(jobs) for _ in range(5)]
        await jobs.cancel(made[0])
        page = await jobs.jobs(3, None, None, None)
        assert [job.id for job in page.items] == made[:1:-1]
        rest = await jobs.jobs(3, page.next_cursor, None, None)
        assert [job.id for job in rest.items] == [made[1], made[0]]
        assert rest.next_cursor is None
        assert [job.id for job in (await jobs.jobs(9, None, JobStatus.CANCELLED, None)).items] == made[:1]
        assert (await jobs.jobs(9, None, None, JobKind.EVALUATE)).items == []


async def test_listeners_see_a_job_until_it_ends(jobs: Jobs) -> None:
    async def listen(job_id: str) -> list[Seen]:
        return [seen async for seen in jobs.follow(job_id)]

    job_id = await submit(jobs, texts=[f"{n}" for n in range(48)], seconds=0.5)
    heard = await asyncio.gather(*(listen(job_id) for _ in range(200)))
    for seen in heard:
        assert [one.version for one in seen] == sorted({one.version for one in seen})
        assert seen[-1].job.status is JobStatus.SUCCEEDED
        assert {one.job.progress.done for one in seen} >= {0, 48}
    estimates = [one.job.progress.remaining_s for one in heard[0]]
    assert any(estimate is not None and 0 < estimate < 5 for estimate in estimates)
    assert "echoing" in {one.job.progress.stage for one in heard[0]}


async def test_what_nobody_foresaw_costs_listeners_a_look(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, fails, looks = JobStore.seen, [RuntimeError("out of breath")], list[int]()

    async def fails_once(self: JobStore, ids: Collection[str]) -> dict[str, Seen]:
        looks.append(len(looks))
        if fails and len(looks) > 2:  # of submit, of a listener, and then for all listeners
            raise fails.pop()
        return await seen(self, ids)

    monkeypatch.setattr(JobStore, "seen", fails_once)
    async with asyncio.timeout(10):
        heard = [one async for one in jobs.follow(await submit(jobs, seconds=1))]
    assert not fails
    assert heard[-1].job.status is JobStatus.SUCCEEDED


async def test_listeners_end_with_the_service(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work, job_items=0) as jobs:
        following = jobs.follow(await submit(jobs))
        await anext(following)
        await jobs.stop()
        assert [seen async for seen in following] == []
        assert [seen async for seen in jobs.follow(await submit(jobs))] == []


async def test_listeners_are_bounded_and_an_unknown_job_is_told(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work, job_listeners=1, job_items=0) as jobs:
        job_id = await submit(jobs)
        first = jobs.follow(job_id)
        await anext(first)
        with pytest.raises(Overloaded):
            await anext(jobs.follow(job_id))
        await first.aclose()
        with pytest.raises(UnknownJob):
            await anext(jobs.follow("01KB3YQ4Z8M2N5P7R9T1V3X5Z7"))


async def test_what_a_dead_worker_held_is_taken_up_and_its_late_result_dropped(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work, job_items=0) as jobs:
        job_id = await submit(jobs, texts=["a"])
    database = Database(settings.sql_url)
    store = JobStore(database, 0.5)
    await store.take(job_id, "slow")
    await store.begin(job_id, "slow", await work.items({"texts": ["a"]}))
    slow = await store.take(job_id, "slow")
    assert isinstance(slow, Turn)
    await asyncio.sleep(0.6)
    quick = await store.take(job_id, "quick")
    assert isinstance(quick, Turn)
    assert quick.attempt == 2
    late = await work.do({}, slow.item, print)
    await store.commit(job_id, "slow", slow, late, None)
    assert (await store.job(job_id)).progress.done == 0
    await store.commit(job_id, "quick", quick, late, None)
    await store.commit(job_id, "quick", quick, late, None)
    assert (await store.job(job_id)).progress.done == 1
    await database.close()


async def test_workers_tell_of_the_same_jobs_in_any_order(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work, job_items=0) as jobs:
        ids = [await submit(jobs, texts=["a"]) for _ in range(8)]
    databases = [Database(settings.sql_url) for _ in range(2)]
    one, other = (JobStore(database, 30) for database in databases)
    for job_id in ids:
        await one.take(job_id, "worker")
        await one.begin(job_id, "worker", await work.items({"texts": ["a"]}))
    for beat in range(10):
        await asyncio.gather(
            one.note(dict.fromkeys(ids, f"one {beat}")),
            other.note(dict.fromkeys(reversed(ids), f"other {beat}")),
        )
    assert {(await one.job(job_id)).progress.stage for job_id in ids} <= {"one 9", "other 9"}
    for database in databases:
        await database.close()


async def test_an_item_that_ends_its_workers_is_given_up(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work, job_items=0) as jobs:
        job_id = await submit(jobs, texts=["a", "b"])
    database = Database(settings.sql_url)
    store = JobStore(database, 0.01)
    await store.take(job_id, "worker")
    await store.begin(job_id, "worker", await work.items({"texts": ["a", "b"]}))
    for _ in range(40):  # which count for nothing
        await store.take(job_id, "worker")
        await store.give_back("worker", job_id)
    for _ in range(31):  # a, b, and then a alone
        await store.take(job_id, "worker")
        await asyncio.sleep(0.02)
    await database.close()
    async with jobs_on(settings, work) as jobs:
        job = await ended(jobs, job_id)
    assert job.summary is not None
    assert job.summary["failures"] == [{"item": "a", "error": "30 workers ended while they were at it"}]
    assert work.began == ["b"]


@pytest.mark.parametrize("items", [None, []], ids=["start", "end"])
async def test_a_job_whose_start_or_end_ends_its_workers_is_given_up(
    settings: Settings, work: Echo, items: list[str] | None
) -> None:
    async with jobs_on(settings, work, job_items=0) as jobs:
        job_id = await submit(jobs, texts=[])
    database = Database(settings.sql_url)
    store = JobStore(database, 0.01)
    if items is not None:
        await store.take(job_id, "worker")
        await store.begin(job_id, "worker", [])
    for _ in range(40):  # which count for nothing
        await store.take(job_id, "worker")
        await store.give_back("worker", job_id)
    for _ in range(30):
        await store.take(job_id, "worker")
        await asyncio.sleep(0.02)
    await database.close()
    async with jobs_on(settings, work) as jobs:
        job = await ended(jobs, job_id)
    assert (job.status, job.error) == (JobStatus.FAILED, "30 workers ended while they were at it")
    assert work.summarised == 0


async def test_ended_jobs_are_forgotten_after_their_time(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work) as jobs:
        job_id = await submit(jobs)
        await ended(jobs, job_id)
    database = Database(settings.sql_url)
    store = JobStore(database, 30)
    assert await store.forget(datetime.now(UTC) - timedelta(minutes=1)) == 0
    assert await store.forget(datetime.now(UTC)) == 1
    with pytest.raises(UnknownJob):
        await store.job(job_id)
    await database.close()


async def test_a_runner_forgets_ended_jobs_with_their_items_and_no_others(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work) as jobs:
        old = await submit(jobs)
        await ended(jobs, old)
    async with jobs_on(settings, work, job_items=0) as jobs:
        unfinished = await submit(jobs, seconds=60)
    await asyncio.sleep(1)
    async with jobs_on(settings, work, job_retention_days=1 / 86_400) as jobs:
        async with asyncio.timeout(5):
            while old in {job.id for job in (await jobs.jobs(9, None, None, None)).items}:
                await asyncio.sleep(0.02)
        assert (await jobs.job(unfinished)).finished_at is None
    database = Database(settings.sql_url)
    async with database.read() as connection:
        left = (await connection.execute(text("SELECT count(DISTINCT job) FROM job_items"))).scalar_one()
    await database.close()
    assert left <= 1, "items outlived their job"


async def test_what_no_store_can_keep_is_a_failure_of_its_item_alone(jobs: Jobs) -> None:
    job = await ended(jobs, await submit(jobs, garbled=["c"]))
    assert job.summary is not None
    assert [failure["item"] for failure in job.summary["failures"]] == ["c"]
    assert len(await texts(jobs, job.id)) == 7


async def test_a_job_waits_for_its_database(settings: Settings, work: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = JobStore.commit
    full = ["full", "full"]

    async def fails_at_first(self: JobStore, *given: object) -> None:
        if full:
            raise StorageFull(full.pop())
        await commit(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(JobStore, "commit", fails_at_first)
    async with jobs_on(settings, work) as jobs:
        job: Job = await ended(jobs, await submit(jobs))
        assert (job.status, await texts(jobs, job.id)) == (JobStatus.SUCCEEDED, LETTERS)
    assert sorted(work.began) == LETTERS


async def test_a_job_is_taken_up_again_where_its_database_was_away_at_its_start_and_end(
    settings: Settings, work: Echo
) -> None:
    work.away.update(items=1, finish=3)
    async with jobs_on(settings, work) as jobs:
        job = await ended(jobs, await submit(jobs))
        assert (job.status, job.error, await texts(jobs, job.id)) == (JobStatus.SUCCEEDED, None, LETTERS)
    assert (sorted(work.began), work.summarised) == (LETTERS, 1)


def test_a_redis_url_that_is_none_is_invalid(settings: Settings) -> None:
    with pytest.raises(Invalid):
        Jobs(settings.model_copy(update={"redis_url": "http://nowhere"}), Database(settings.sql_url), {}, "")


async def test_the_migrations_make_the_tables_as_they_are_declared(settings: Settings, work: Echo) -> None:
    async with jobs_on(settings, work):
        database = Database(settings.sql_url)
        async with database.read() as connection:
            differences = await connection.run_sync(
                lambda sync: compare_metadata(MigrationContext.configure(sync), metadata)
            )
        await database.close()
    assert differences == []
