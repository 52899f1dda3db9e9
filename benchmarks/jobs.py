"""A job's wall time against sending its recorded requests again, to the same server, as fast as it takes them.

python -m benchmarks.jobs

The LLM is scripted: real protocol, `SLOTS` requests at a time, each as long as its reply is in tokens. Both ways have
the same bound on requests in flight. Also: how fast jobs are made, listed and cancelled, and how late a listener hears.
"""

from __future__ import annotations

import asyncio
import heapq
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from tests.e2e.test_job_crashes import PLACES, REQUEST
from tests.llm.eloq import World, first_turn, task
from tests.scripted import Asked, Said, ScriptedLlm, until

from benchmarks.report import table
from benchmarks.server import serving

SLOTS = 8
TOKEN_S = 0.004
FIRST_S = 0.05
CALLS = 32
JOBS = 1000
LISTENERS = 200


class Engine(World):
    """Knows PLACES, has so many slots, and is busy with each request for as long as its replies take."""

    def __init__(self) -> None:
        super().__init__()
        self._free = [0.0] * SLOTS
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Said:
        with self._lock:
            self.times.clear()
            text = first_turn(asked)
            place = next(place for place in PLACES if place.name in text)
            reply = getattr(self, f"_{task(asked)}")(place, text)
            texts = reply.text if isinstance(reply, Said) else reply
            longest = texts if isinstance(texts, str) else max(texts, key=len)
            now = time.monotonic()
            end = max(now, heapq.heappop(self._free)) + FIRST_S + TOKEN_S * len(longest.split())
            heapq.heappush(self._free, end)
            return Said(texts, after_s=end - now)


async def replay(url: str, bodies: list[dict[str, Any]]) -> float:
    """Sends them all, CALLS at a time; returns how long that took."""
    calls = asyncio.Semaphore(CALLS)
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=CALLS)) as client:  # noqa: S113

        async def send(body: dict[str, Any]) -> None:
            async with calls:
                (await client.post(f"{url}/chat/completions", json=body)).raise_for_status()

        begun = time.perf_counter()
        await asyncio.gather(*map(send, bodies))
        return time.perf_counter() - begun


def job(client: httpx.Client) -> float:
    """Runs a job; returns how long it took from being asked for to its end."""
    begun = time.perf_counter()
    made = client.post("/generate-dataset", json=REQUEST).raise_for_status().json()
    with client.stream("GET", f"/jobs/{made['id']}/events") as events:
        for _ in events.iter_lines():
            pass
    took = time.perf_counter() - begun
    ended = client.get(f"/jobs/{made['id']}").json()
    assert ended["status"] == "succeeded", ended
    return took


def crowd(client: httpx.Client) -> list[tuple[str, str]]:
    """Many jobs, the first of them at work: made, listed, cancelled from the latest on."""
    request = REQUEST | {"documents": [place.document for place in PLACES[:3]]}
    begun = time.perf_counter()
    ids = [client.post("/generate-dataset", json=request).raise_for_status().json()["id"] for _ in range(JOBS)]
    made = time.perf_counter() - begun
    begun = time.perf_counter()
    items = client.get("/jobs", params={"limit": JOBS}).raise_for_status().json()["items"]
    listed = time.perf_counter() - begun
    assert [item["id"] for item in items] == ids[::-1]
    begun = time.perf_counter()
    for item in items:
        client.delete(f"/jobs/{item['id']}").raise_for_status()
    cancelled = time.perf_counter() - begun
    times = {"made": made, "listed": listed, "cancelled": cancelled}
    return [(f"{JOBS} jobs {done}", f"{seconds:.2f}") for done, seconds in times.items()]


async def listeners(url: str, llm: ScriptedLlm) -> list[tuple[str, str]]:
    """Many listeners to one job that ends by being cancelled: how late they know, and the LLM."""
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=httpx.Limits()) as client:  # noqa: S113
        made = (await client.post("/generate-dataset", json=REQUEST)).json()["id"]
        listening = asyncio.Semaphore(0)
        ends: list[float] = []

        async def listen() -> None:
            async with client.stream("GET", f"/jobs/{made}/events") as events:
                listening.release()
                async for _ in events.aiter_lines():
                    pass
                ends.append(time.perf_counter())

        tasks = [asyncio.create_task(listen()) for _ in range(LISTENERS)]
        for _ in tasks:
            await listening.acquire()
        await asyncio.sleep(2)
        begun = time.perf_counter()
        await client.delete(f"/jobs/{made}")
        await asyncio.to_thread(until, lambda: all(asked.done_at or asked.gone_at for asked in llm.asked))
        gone = time.perf_counter() - begun
        await asyncio.gather(*tasks)
    heard = f"{min(ends) - begun:.2f}, {max(ends) - begun:.2f}"
    return [
        (f"{LISTENERS} listeners hear of a cancel: first, last", heard),
        ("its requests to the LLM end", f"{gone:.2f}"),
    ]


def main() -> None:
    """A job and its replay, in one run, three times; then the crowds."""
    with ScriptedLlm() as llm, tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        settings = {"llm_url": llm.url, "job_llm_calls": str(CALLS)}
        with serving(Path(first), **settings) as server, httpx.Client(base_url=server.url, timeout=600) as client:
            rows = []
            for _ in range(3):
                llm.begin_again(Engine())
                took = job(client)
                bodies = [asked.body for asked in llm.asked]
                llm.begin_again(Engine())
                again = asyncio.run(replay(llm.url, bodies))
                rows.append([len(bodies), f"{took:.2f}", f"{again:.2f}", f"{took / again:.3f}"])
        columns = ["requests", "job s", "replay s", "job / replay"]
        table(f"A job of {len(PLACES)} documents; an LLM with {SLOTS} slots", columns, rows)
        with serving(Path(second), **settings) as server, httpx.Client(base_url=server.url, timeout=600) as client:
            llm.begin_again(lambda _: Said("Well.", after_s=60))
            many = [*crowd(client), *asyncio.run(listeners(server.url, llm))]
        table("Many jobs, many listeners", ["what", "s"], many)


if __name__ == "__main__":
    main()
