"""Jobs told of through a real Redis stream, with their truth in a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from scopegate.domain import JobKind, JobStatus
from scopegate.jobs import Jobs, runner
from scopegate.settings import Settings
from tests.services.redis_server import RedisServer
from tests.unit.jobs import Echo, ended, jobs_on, texts

NUMBERS = [f"{n}" for n in range(45)]


@pytest.fixture
def settings(settings: Settings, redis: RedisServer) -> Settings:
    return settings.model_copy(update={"redis_url": redis.url, "job_items": 4, "job_lease_s": 1})


@asynccontextmanager
async def connected(redis: RedisServer) -> AsyncIterator[Redis]:
    connection = Redis.from_url(redis.url)
    try:
        yield connection
    finally:
        await connection.aclose()


async def pending(redis: RedisServer) -> int:
    async with connected(redis) as connection:
        return int((await connection.xpending("scopegate:jobs", "scopegate:workers"))["pending"])


async def submit(jobs: Jobs, seconds: float = 0.05) -> str:
    return (await jobs.submit(JobKind.GENERATE, {"texts": NUMBERS, "seconds": seconds}))[0].id


async def test_a_message_alone_brings_a_job_to_a_worker_and_is_acknowledged(
    settings: Settings, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_SWEEP_S", 3600.0)
    work = Echo()
    async with jobs_on(settings, Echo(), job_items=0) as service, jobs_on(settings, work):
        job = await ended(service, await submit(service))
        assert job.status is JobStatus.SUCCEEDED
        assert sorted(work.began) == sorted(NUMBERS)
        async with asyncio.timeout(5):
            while await pending(redis):
                await asyncio.sleep(0.05)


async def test_two_workers_never_give_an_item_twice(settings: Settings) -> None:
    one, other = Echo(), Echo()
    async with jobs_on(settings, one, job_lease_s=15) as jobs, jobs_on(settings, other, job_lease_s=15):
        job_ids = [await submit(jobs, 0.3), await submit(jobs, 0.3)]
        for job_id in job_ids:
            await ended(jobs, job_id, 60)
            assert await texts(jobs, job_id) == NUMBERS
    assert one.began
    assert other.began
    assert len(one.began) + len(other.began) == 90


async def test_redis_killed_and_started_empty_loses_nothing(settings: Settings, redis: RedisServer) -> None:
    work = Echo()
    async with jobs_on(settings, work) as jobs:
        first = await submit(jobs, 0.2)
        while len(work.done) < 8:
            await asyncio.sleep(0.02)
        redis.kill()
        while_away = await submit(jobs, 0.05)
        assert (await ended(jobs, first, 60)).status is JobStatus.SUCCEEDED
        redis.start()
        afterwards = await submit(jobs, 0.05)
        for job_id in (first, while_away, afterwards):
            assert (await ended(jobs, job_id, 60)).status is JobStatus.SUCCEEDED
            assert await texts(jobs, job_id) == NUMBERS
    assert len(work.began) == 3 * len(NUMBERS)


async def test_messages_come_again_once_redis_is_back(
    settings: Settings, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_SWEEP_S", 3600.0)
    async with jobs_on(settings, Echo()) as jobs:
        await ended(jobs, await submit(jobs))
        redis.kill()
        await asyncio.sleep(1.5)
        redis.start()
        await ended(jobs, await submit(jobs))


async def test_the_message_of_a_dead_worker_is_claimed_by_another(settings: Settings, redis: RedisServer) -> None:
    async with jobs_on(settings, Echo(), job_items=0) as service:
        job_id = await submit(service)
        async with connected(redis) as connection:
            async with asyncio.timeout(5):
                while not await connection.exists("scopegate:jobs"):
                    await asyncio.sleep(0.02)
            await connection.xgroup_create("scopegate:jobs", "scopegate:workers", id="0", mkstream=True)
            taken = await connection.xreadgroup("scopegate:workers", "dead", {"scopegate:jobs": ">"})
            assert taken
        assert await pending(redis) == 1
        await asyncio.sleep(2.1)
        async with jobs_on(settings, Echo()) as jobs:
            await ended(jobs, job_id)
            await ended(jobs, await submit(jobs))
            async with asyncio.timeout(10):
                while await pending(redis):
                    await asyncio.sleep(0.05)
