"""Start to ready and resident memory with 10,000 facts: after a clean stop, and after the snapshot is lost.

python -m benchmarks.start
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path

import httpx

from benchmarks.corpus import facts, questions
from benchmarks.report import table
from benchmarks.server import add_facts, serving

FACTS = 10_000
STARTS = 5


def main() -> None:
    """Starts a service several times each way."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(folder) as server:
            add_facts(server.url, list(facts(FACTS)))
        for way in ("from its snapshot", "from SQL alone"):
            ready, memory, after = [], [], []
            for _ in range(STARTS):
                if way == "from SQL alone":
                    shutil.rmtree(folder / "views")
                with serving(folder) as server:
                    ready.append(server.ready_s)
                    memory.append(server.resident_mb())
                    with httpx.Client(base_url=server.url, timeout=60) as client:
                        for question in questions(200):
                            client.post("/check", json={"question": question}).raise_for_status()
                    after.append(server.resident_mb())
            row = [way, f"{statistics.median(ready):.2f}", f"{max(ready):.2f}"]
            rows.append([*row, f"{statistics.median(memory):.0f}", f"{statistics.median(after):.0f}"])
    columns = ["start", "ready s, median", "slowest", "MB when ready", "MB after 200 checks"]
    table(f"Process start to /readyz, {FACTS:,} facts, {STARTS} starts each", columns, rows)


if __name__ == "__main__":
    main()
