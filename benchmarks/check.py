"""/check under 16 clients against the same gatekeeper in process: the server's CPU seconds a request, in one run.

    python -m benchmarks.check

10,000 facts, hard gate and feature probe, questions that nobody asked before. Both are rounds of a process of its own
with the same threads; rounds alternate, so that a noisy machine disturbs both.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import httpx
import psutil

from benchmarks.corpus import facts, questions
from benchmarks.report import console, milliseconds, table
from benchmarks.server import Server, add_facts, serving
from scopegate.domain import Check
from scopegate.services import Services
from scopegate.settings import Settings

CLIENTS = 16
FACTS = 10_000
REQUESTS = 1_500
ROUNDS = 4
# The quickest: what HTTP adds is to be seen. benchmarks.reader has what the default probe costs.
PROBE = "feature-probe"
# alpha lets every question on to the probe, so that both gates run.
POLICY = {"alpha": 10.0}

Ask = Callable[[str], Awaitable[None]]


async def drive(ask: Ask, asked: list[str]) -> tuple[float, list[float]]:
    """Asks from 16 clients; wall seconds, and each question's seconds."""
    waiting = iter(asked)
    times: list[float] = []

    async def client() -> None:
        for question in waiting:
            start = time.perf_counter()
            await ask(question)
            times.append(time.perf_counter() - start)

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return time.perf_counter() - start, times


async def over_http(server: Server, asked: list[str]) -> tuple[float, float, list[float]]:
    """CPU seconds of the server, wall seconds, each request's seconds."""
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=CLIENTS)) as client:

        async def ask(question: str) -> None:
            async with client.post("/check", json={"question": question, "policy": POLICY}) as response:
                response.raise_for_status()
                await response.read()

        before = server.cpu_s()
        wall, times = await drive(ask, asked)
        return server.cpu_s() - before, wall, times


async def in_process(services: Services, asked: list[str]) -> tuple[float, float, list[float]]:
    """The same, of this process and the gatekeeper alone."""

    async def ask(question: str) -> None:
        await services.gatekeeper.check(Check(question, overrides=POLICY))

    before = time.process_time()
    wall, times = await drive(ask, asked)
    return time.process_time() - before, wall, times


async def measure(folder: Path) -> None:
    """Alternates both and prints the table."""
    stream = questions((ROUNDS + 1) * 2 * REQUESTS)
    sums = {"HTTP": [0.0, 0.0], "in process": [0.0, 0.0]}
    taken: dict[str, list[float]] = {"HTTP": [], "in process": []}
    services = Services(Settings(data_dir=folder / "in-process", probe=PROBE))
    (folder / "http").mkdir()
    with serving(folder / "http", probe=PROBE) as server:
        await asyncio.to_thread(add_facts, server.url, list(facts(FACTS)))
        async with services.running():
            await services.knowledge.ready(60)
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                exported = (await client.get("/scopes/default/export")).content.splitlines()
            from scopegate.api.body import facts_of_lines  # the same facts, by the same way in

            await services.knowledge.add("default", facts_of_lines(exported))
            for round_number in range(ROUNDS + 1):
                for name in sums:
                    asked = [next(stream) for _ in range(REQUESTS)]
                    run = over_http(server, asked) if name == "HTTP" else in_process(services, asked)
                    cpu, wall, times = await run
                    if round_number:  # the first round warms up
                        sums[name][0] += cpu
                        sums[name][1] += wall
                        taken[name] += times
    n = ROUNDS * REQUESTS
    rows = [
        [name, f"{cpu / n * 1000:.2f}", f"{n / wall:.0f}", milliseconds(taken[name], 50), milliseconds(taken[name], 99)]
        for name, (cpu, wall) in sums.items()
    ]
    title = f"/check, {CLIENTS} clients, {FACTS:,} facts, hard gate and feature probe, {n:,} new questions"
    table(title, ["", "CPU ms a request", "requests/s", "p50 ms", "p99 ms"], rows)
    console.print(f"CPU over HTTP / in process: {sums['HTTP'][0] / sums['in process'][0]:.2f}")
    console.print("The client shares the machine's cores with the server.", f"Cores: {psutil.cpu_count()}.")


def main() -> None:
    """Runs it in a scratch folder."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))


if __name__ == "__main__":
    main()
