"""/v1/chat/completions in front of an LLM that answers at once, against that LLM alone, in one run.

    python -m benchmarks.chat

10,000 facts. "gates off" is one gate that never refuses (hard with alpha 1e6), since a policy has at least one; so it
still finds the evidence that the LLM is given. "hard and probe", the feature probe, are both asked, with thresholds
that let every question pass, so that the LLM is asked as often as without them. A question asked before has its
embedding cached; a new one is embedded. Rounds alternate, so that a noisy machine disturbs all alike.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil

from benchmarks.corpus import facts, questions
from benchmarks.instant_llm import MODEL, TOKENS, answering
from benchmarks.report import console, milliseconds, table
from benchmarks.server import Server, add_facts, serving

FACTS = 10_000
# The quickest: what the endpoint adds is to be seen.
PROBE = "feature-probe"
ROUNDS = 3
REQUESTS = {1: 200, 16: 400}

OFF = {"gates": ["hard"], "alpha": 1e6}
BOTH = {"gates": ["hard", "probe"], "alpha": 1e6, "probe_threshold": 0.0}


@dataclass
class Way:
    """One way to ask, and what it took."""

    name: str
    url: str
    asked: Iterator[str]
    fields: dict[str, Any]
    seconds: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0

    async def drive(self, session: aiohttp.ClientSession, clients: int) -> tuple[list[float], float]:
        """Each request's seconds, and the wall's. Raises RuntimeError where the answer is not the LLM's."""
        waiting = list(itertools.islice(self.asked, REQUESTS[clients]))
        taken: list[float] = []

        async def client() -> None:
            while waiting:
                request = {**self.fields, "messages": [{"role": "user", "content": waiting.pop()}]}
                start = time.perf_counter()
                async with session.post(f"{self.url}/chat/completions", json=request) as response:
                    body = await response.json()
                taken.append(time.perf_counter() - start)
                if "the first passage names" not in body["choices"][0]["message"]["content"]:
                    raise RuntimeError(f"the LLM did not answer: {body}")

        start = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        return taken, time.perf_counter() - start


def ways(llm: str, service: str) -> list[Way]:
    """The LLM alone first."""
    new = questions(10**9)
    again = itertools.cycle(list(questions(50, seed=2)))

    def gated(name: str, asked: Iterator[str], policy: dict[str, Any]) -> Way:
        return Way(name, service, asked, {"model": "scopegate/default", "scopegate": {"policy": policy}})

    return [
        Way("the LLM alone", llm, again, {"model": MODEL}),
        gated("gates off, asked before", again, OFF),
        gated("gates off, new", new, OFF),
        gated("hard and probe, asked before", again, BOTH),
        gated("hard and probe, new", new, BOTH),
    ]


async def measure(llm: str, server: Server, clients: int) -> None:
    """Alternates the ways and prints the table; CPU is the service's, a request."""
    all_ways = ways(llm, f"{server.url}/v1")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=clients)) as session:
        for round_number in range(ROUNDS + 1):
            for way in all_ways:
                before = server.cpu_s()
                seconds, wall_s = await way.drive(session, clients)
                if round_number:  # the first round warms up
                    way.seconds += seconds
                    way.wall_s += wall_s
                    way.cpu_s += server.cpu_s() - before
    alone = np.percentile(all_ways[0].seconds, 50)
    rows = [
        [
            way.name,
            milliseconds(way.seconds, 50),
            milliseconds(way.seconds, 99),
            f"{(np.percentile(way.seconds, 50) - alone) * 1000:.2f}",
            f"{len(way.seconds) / way.wall_s:.0f}",
            f"{way.cpu_s / len(way.seconds) * 1000:.2f}",
        ]
        for way in all_ways
    ]
    title = f"chat, {clients} client{'s' * (clients > 1)}, {ROUNDS * REQUESTS[clients]:,} requests a row"
    table(title, ["", "p50 ms", "p99 ms", "p50 added, ms", "requests/s", "service CPU ms"], rows)


def main() -> None:
    """Runs it in a scratch folder."""
    with (
        tempfile.TemporaryDirectory() as folder,
        answering() as llm,
        serving(Path(folder), llm_url=llm, probe=PROBE) as server,
    ):
        add_facts(server.url, list(facts(FACTS)))
        for clients in REQUESTS:
            asyncio.run(measure(llm, server, clients))
    console.print(f"The LLM's reply is {len(TOKENS)} tokens, which it streams to the service as a chunk each.")
    console.print(
        f"Client, service and LLM share {psutil.cpu_count()} cores; load before: {psutil.getloadavg()[0]:.1f}."
    )


if __name__ == "__main__":
    main()
