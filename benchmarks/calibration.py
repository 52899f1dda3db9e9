"""How often the promise of a calibration is broken: 2,000 calibration sets drawn from a labelled pool, by passage.

    python -m benchmarks.calibration DATA.jsonl.gz [...] [--rows 2000] [--draws 2000]

Rows hold question, passage and answerable. The gates see each row once; the pool of what they saw is the population,
and its own share of unanswerable questions let through is the truth. Each set is drawn from it by passage, with all of
a passage's questions, as many passages as the pool has. The promise may be broken in a share delta of the draws, plus
three standard errors of so many draws.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import table
from scopegate.domain import JobKind
from scopegate.evaluation.calibration import labelled
from scopegate.evaluation.datasets import read_rows
from scopegate.evaluation.thresholds import Labelled, calibrate, passes
from scopegate.services import Services
from scopegate.settings import Settings

READY_S = 60.0
PROMISES = ((0.05, 0.1), (0.1, 0.1), (0.2, 0.05))


def some(rows: Sequence[dict[str, Any]], wanted: int) -> list[dict[str, Any]]:
    """About as many rows, whole passages."""
    held: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        held[row["passage"]].append(row)
    passages = sorted(held)
    random.Random(0).shuffle(passages)
    kept: list[dict[str, Any]] = []
    for passage in passages:
        if len(kept) < wanted:
            kept += held[passage]
    return kept


async def seen(services: Services, rows: Sequence[dict[str, Any]]) -> Labelled:
    questions = [
        {"question": row["question"], "answerable": row["answerable"], "passages": [{"text": row["passage"]}]}
        for row in rows
    ]
    spec = {"scope": "default", "questions": questions}
    work = services.works[JobKind.CALIBRATE]
    found = [row for item in await work.items(spec) for row in (await work.do(spec, item, lambda _: None)).rows]
    pool, _ = labelled(questions, {int(row["id"]): row for row in found})
    return pool


def promises(pool: Labelled, draws: int) -> list[tuple[str, ...]]:
    """A row for each promise and each choice of gates."""
    members: defaultdict[str, list[int]] = defaultdict(list)
    for number, group in enumerate(pool.group):
        members[group].append(number)
    passages = [np.array(each) for each in members.values()]
    rows: list[tuple[str, ...]] = []
    for (most, delta), (gates, hard) in product(PROMISES, (("probe", False), ("both", True))):
        rng = np.random.default_rng(0)
        broken, refused = 0, []
        for draw in range(draws):
            drawn = [passages[place] for place in rng.integers(0, len(passages), len(passages))]
            at = np.concatenate(drawn)
            called = np.repeat(np.arange(len(drawn)), [len(each) for each in drawn]).astype(str)
            sample = Labelled(pool.ratio[at], pool.probability[at], pool.answerable[at], called.tolist())
            found = calibrate(sample, hard=hard, probe=True, most=most, delta=delta, seed=draw)
            if found.recommended is not None:
                answered = passes(pool, found.recommended)
                broken += bool(answered[~pool.answerable].mean() > most)
                refused.append(1 - answered[pool.answerable].mean())
        allowed = delta + 3 * math.sqrt(delta * (1 - delta) / draws)
        rows.append(
            (
                f"{most:.0%}, {1 - delta:.0%}",
                gates,
                f"{len(refused) / draws:.1%}",
                f"{broken / draws:.2%}",
                f"{allowed:.2%}",
                f"{np.mean(refused):.1%}" if refused else "-",
            )
        )
    return rows


async def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=2000)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        services = Services(Settings(data_dir=Path(folder)))
        async with services.running():
            await services.knowledge.ready(READY_S)
            for path in given.data:
                pool = await seen(services, some(read_rows(path), given.rows))
                sizes = Counter(group for group, label in zip(pool.group, pool.answerable, strict=True) if not label)
                table(
                    f"{given.draws} calibration sets from {path.name}: {len(pool.group)} questions, {sizes.total()} of "
                    f"them unanswerable on {len(sizes)} passages, at most {max(sizes.values())} on one",
                    ("promise", "gates", "promised", "broken", "allowed", "answerable refused"),
                    await asyncio.to_thread(promises, pool, given.draws),
                )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
