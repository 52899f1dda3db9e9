"""100,000 facts by NDJSON in calls of 10,000: facts a second against the embedder's own rate, and the memory.

    python -m benchmarks.ingest [FACTS]

The embedder's rate is measured in the same run, in a process of its own with as many threads, on other facts of the
same kind: before, between and after.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import httpx

from benchmarks.corpus import facts
from benchmarks.report import console, table
from benchmarks.server import serving
from scopegate.inference.embedder import Embedder
from scopegate.inference.encoder import load_encoder
from scopegate.settings import Settings, models_dir

CALL = 10_000
SAMPLE = 2_000


async def embedding_rate(texts: list[str]) -> float:
    """Texts a second through the embedder alone."""
    settings = Settings()
    embedder = Embedder(load_encoder(settings.embedder, models_dir()), settings)
    await embedder.embed(texts[:64], bulk=True)
    start = time.perf_counter()
    await embedder.embed(texts, bulk=True)
    rate = len(texts) / (time.perf_counter() - start)
    await embedder.stop()
    return rate


def main() -> None:
    """Adds call after call, and prints a row for each."""
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    other = facts(SAMPLE * (total // CALL + 1), seed=99)
    rates, rows, spent = [], [], 0.0
    with tempfile.TemporaryDirectory() as name, serving(Path(name)) as server:
        texts = list(facts(total))
        with httpx.Client(base_url=server.url, timeout=600) as client:
            for start in range(0, total, CALL):
                rates.append(asyncio.run(embedding_rate([next(other) for _ in range(SAMPLE)])))
                body = "\n".join(json.dumps({"text": text}) for text in texts[start : start + CALL])
                began = time.perf_counter()
                headers = {"Content-Type": "application/x-ndjson"}
                client.post("/scopes/default/facts", content=body, headers=headers).raise_for_status()
                seconds = time.perf_counter() - began
                spent += seconds
                rows.append([f"{start + CALL:,}", f"{CALL / seconds:.0f}", f"{server.resident_mb():.0f}"])
                console.print(*rows[-1])
        rates.append(asyncio.run(embedding_rate([next(other) for _ in range(SAMPLE)])))
    own, rate = total / spent, sum(rates) / len(rates)
    table("NDJSON in calls of 10,000", ["facts so far", "facts/s", "resident MB"], rows)
    console.print(f"{own:.0f} facts/s stored; the embedder alone {rate:.0f} texts/s; ratio {own / rate:.2f}")


if __name__ == "__main__":
    main()
