"""kill -9 of workers in the middle of jobs, again and again: every document once in the result, little done twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from tests.conftest import Server
from tests.llm.eloq import Place, World, first_turn, task
from tests.scripted import Asked, Said, ScriptedLlm
from tests.services.conftest import Postgres, fresh_database, postgres, redis
from tests.services.redis_server import RedisServer

__all__ = ["postgres", "redis"]

CRASHES = 20
PLACES = [Place(f"Quay {n:02} Harbour") for n in range(45)]
REQUEST = {"documents": [place.document for place in PLACES], "facts_per_document": 6, "rounds": 2, "votes": 3}
ITEMS = 4
JOB_S = 300


class Coast(World):
    """Knows PLACES, remembers nothing, and takes its time."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)

    def __call__(self, asked: Asked) -> Said:
        self.times.clear()
        text = first_turn(asked)
        place = next(place for place in PLACES if place.name in text)
        reply = getattr(self, f"_{task(asked)}")(place, text)
        return Said(reply.text if isinstance(reply, Said) else reply, after_s=self._rng.uniform(0.05, 0.25))


class Worker:
    """`scopegate worker` as a process; ready once it has said so."""

    def __init__(self, data_dir: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scopegate.cli", "worker", "--data-dir", str(data_dir)],
            env=os.environ | environment,
            stderr=subprocess.PIPE,
        )
        self.works = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                if b'"event":"working"' in line:
                    self.works.set()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(20)
        self._reader.join(20)


@pytest.fixture
def llm() -> Iterator[ScriptedLlm]:
    with ScriptedLlm(Coast(7)) as llm:
        yield llm


def submit(client: httpx.Client) -> str:
    job: str = client.post("/generate-dataset", json=REQUEST).raise_for_status().json()["id"]
    return job


def look(client: httpx.Client, job: str) -> dict[str, Any]:
    shown: dict[str, Any] = client.get(f"/jobs/{job}").raise_for_status().json()
    return shown


def wait_for_end(client: httpx.Client, job: str) -> None:
    end = time.monotonic() + JOB_S
    while look(client, job)["finished_at"] is None:
        assert time.monotonic() < end
        time.sleep(0.2)


def whole(client: httpx.Client, job: str) -> None:
    """Every document's rows are in the result, exactly once, as if nothing had happened."""
    shown = look(client, job)
    assert shown["status"] == "succeeded"
    assert shown["progress"]["done"] == shown["summary"]["items"] == len(PLACES)
    assert shown["summary"]["given_up"] == 0
    lines = client.get(f"/jobs/{job}/result").raise_for_status().text.splitlines()
    rows = Counter((row["id"], row["question"]) for row in map(json.loads, lines))
    expected = [(row["id"], row["question"]) for place in PLACES for row in place.rows(0)]
    assert rows == Counter(expected)


def test_a_killed_service_goes_on_with_its_job(serve: Callable[..., Server], llm: ScriptedLlm) -> None:
    rng = random.Random(7)
    environment = {"SCOPEGATE_LLM_URL": llm.url, "SCOPEGATE_JOB_ITEMS": str(ITEMS), "SCOPEGATE_JOB_LEASE_S": "1"}
    server = serve(**environment)
    jobs = [submit(server.client)]
    for _ in range(CRASHES):
        time.sleep(rng.uniform(0.0, 2.0))
        if look(server.client, jobs[-1])["finished_at"] is not None:
            jobs.append(submit(server.client))
            time.sleep(rng.uniform(0.0, 2.0))
        server.stop(signal.SIGKILL)
        server = serve(**environment)
    for job in jobs:
        wait_for_end(server.client, job)
        whole(server.client, job)
    with closing(sqlite3.connect(server.data_dir / "scopegate.db")) as database:
        ((repeated,),) = database.execute("SELECT SUM(attempts) - COUNT(*) FROM job_items")
    assert repeated <= CRASHES * ITEMS
    assert server.stop() == 0


def test_killed_workers_and_an_emptied_redis_lose_nothing(
    serve: Callable[..., Server],
    llm: ScriptedLlm,
    postgres: Postgres,
    redis: RedisServer,
    tmp_path: Path,
) -> None:
    rng = random.Random(7)
    url = asyncio.run(fresh_database(postgres))
    environment = {
        "SCOPEGATE_LLM_URL": llm.url,
        "SCOPEGATE_DATABASE_URL": url,
        "SCOPEGATE_REDIS_URL": redis.url,
        "SCOPEGATE_JOB_LEASE_S": "1",
        "SCOPEGATE_JOB_ITEMS": "2",
    }
    server = serve(**environment | {"SCOPEGATE_JOB_ITEMS": "0"})
    with ExitStack() as stack:

        def start() -> Worker:
            worker = Worker(tmp_path / "data", environment)
            stack.callback(worker.kill)
            return worker

        workers = [start() for _ in range(3)]
        jobs = [submit(server.client)]
        for crash in range(CRASHES):
            victim = rng.randrange(len(workers))
            assert workers[victim].works.wait(60)
            time.sleep(rng.uniform(0.0, 2.0))
            if look(server.client, jobs[-1])["finished_at"] is not None:
                jobs.append(submit(server.client))
                time.sleep(rng.uniform(0.0, 2.0))
            workers[victim].kill()
            workers[victim] = start()
            if crash % 7 == 3:
                redis.kill()
                time.sleep(rng.uniform(0.0, 1.0))
                redis.start()
        for job in jobs:
            wait_for_end(server.client, job)
            whole(server.client, job)
    assert asyncio.run(repeats(url)) <= CRASHES * 2
    assert server.stop() == 0


async def repeats(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT SUM(attempts) - COUNT(*) FROM job_items"))
    finally:
        await connection.close()
