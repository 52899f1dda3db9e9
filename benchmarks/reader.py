"""What reading costs: a pair of 200 tokens on one thread, and /check with the reader against /check without it.

    python -m benchmarks.reader

/check under 16 clients on 10,000 facts, k = 4, questions that nobody asked before and that all pass the hard gate; the
feature probe alone judges in one service, the reader in the other. Rounds alternate, so that a noisy machine disturbs
both.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import aiohttp

from benchmarks.check import CLIENTS, FACTS, POLICY, drive
from benchmarks.corpus import facts, questions
from benchmarks.report import console, milliseconds, table
from benchmarks.server import Server, add_facts, serving
from scopegate.inference.reader import OnnxReader
from scopegate.settings import models_dir

PROBES = ("feature-probe", "minilm-reader")
TOKENS = 200
PAIRS = 200
REQUESTS = 400
ROUNDS = 4


def one_pair() -> None:
    """Prints how long a pair takes."""
    reader = OnnxReader(models_dir() / "minilm-reader")
    question = next(questions(1))
    text = " ".join(facts(30))
    while (tokens := len(reader.pair(question, text))) > TOKENS:
        text = text.rpartition(" ")[0]
    seconds = []
    for _ in range(PAIRS):
        start = time.perf_counter()
        reader.read([reader.pair(question, text)])
        seconds.append(time.perf_counter() - start)
    p50, p99 = milliseconds(seconds, 50), milliseconds(seconds, 99)
    console.print(f"A pair of {tokens} tokens on one thread: p50 {p50} ms, p99 {p99} ms")


async def asking(server: Server, asked: list[str]) -> tuple[float, list[float]]:
    """Wall seconds, and each request's."""
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=CLIENTS)) as client:

        async def ask(question: str) -> None:
            async with client.post("/check", json={"question": question, "policy": POLICY}) as response:
                response.raise_for_status()
                await response.read()

        return await drive(ask, asked)


async def throughput(folder: Path) -> None:
    """Alternates both services and prints the table."""
    stream = questions((ROUNDS + 1) * len(PROBES) * REQUESTS)
    known = list(facts(FACTS))
    walls = dict.fromkeys(PROBES, 0.0)
    taken: dict[str, list[float]] = {name: [] for name in PROBES}
    for name in PROBES:
        (folder / name).mkdir()
    with (
        serving(folder / PROBES[0], probe=PROBES[0]) as without,
        serving(folder / PROBES[1], probe=PROBES[1]) as beside,
    ):
        servers = dict(zip(PROBES, (without, beside), strict=True))
        for server in servers.values():
            await asyncio.to_thread(add_facts, server.url, known)
        for round_number in range(ROUNDS + 1):
            for name, server in servers.items():
                wall, times = await asking(server, [next(stream) for _ in range(REQUESTS)])
                if round_number:  # the first round warms up
                    walls[name] += wall
                    taken[name] += times
    n = ROUNDS * REQUESTS
    rows = [
        [name, f"{n / wall:.0f}", milliseconds(taken[name], 50), milliseconds(taken[name], 99)]
        for name, wall in walls.items()
    ]
    table(
        f"/check, {CLIENTS} clients, {FACTS:,} facts, {n:,} new questions", ["", "requests/s", "p50 ms", "p99 ms"], rows
    )
    console.print(f"With the reader / without it: {walls[PROBES[0]] / walls[PROBES[1]]:.2f} of the throughput")


def main() -> None:
    """Runs both in a scratch folder."""
    one_pair()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(throughput(Path(folder)))


if __name__ == "__main__":
    main()
