"""Answering from a share of the right answers, and refusing the rest: table 4 of Learn to Refuse, without an LLM.

    python -m benchmarks.gold_knowledge TruthfulQA.csv [SEEDS]

The embedded default knows the best answers of a share of TruthfulQA's questions, drawn by seed, and is asked all of
them; it chooses the candidate closest to its evidence. Beside it stand the paper's figures. Once its own sentence is
stored, choosing among a question's candidates is near-trivial, since one of them is that sentence; so what the table
shows is which questions are answered and which refused, and whether the right fact is found.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from benchmarks.report import table
from scopegate.domain import JobKind
from scopegate.evaluation.datasets import read_rows
from scopegate.services import Services
from scopegate.settings import Settings

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Table 4: answered and accuracy in per cent, of L2R and of RAG.
PAPER = {
    0.0: ("0", "-", "817", "46.6"),
    0.25: ("178", "93.3", "817", "64.7"),
    0.5: ("349", "90.5", "817", "73.2"),
    0.75: ("516", "93.4", "817", "79.6"),
    1.0: ("658", "93.2", "817", "84.5"),
}
READY_S = 60.0


async def runs(services: Services, rows: list[dict[str, Any]], seed: int, alpha: float | None) -> list[dict[str, Any]]:
    options: dict[str, Any] = {"gold_shares": list(SHARES), "seed": seed, "llm": False}
    if alpha is not None:
        options |= {"alpha": alpha, "without": ["probe"]}
    spec = {"task": "multiple_choice", "dataset": rows, "options": options}
    work = services.works[JobKind.EVALUATE]
    done = [await work.do(spec, item, lambda _: None) for item in await work.items(spec)]
    found: list[dict[str, Any]] = (await work.finish(spec, done))["runs"]
    return found


def shown(values: Sequence[float | None], scale: float = 100.0) -> str:
    told = [scale * value for value in values if value is not None]
    if not told:
        return "-"
    digits = 1 if scale > 1 else 0
    return f"{mean(told):.{digits}f}" + (f" ± {pstdev(told):.{digits}f}" if len(told) > 1 and pstdev(told) else "")


async def main(arguments: Sequence[str]) -> None:
    rows = read_rows(Path(arguments[0]))
    seeds = range(int(arguments[1]) if len(arguments) > 1 else 3)
    with tempfile.TemporaryDirectory() as folder:
        services = Services(Settings(data_dir=Path(folder)))
        async with services.running():
            await services.knowledge.ready(READY_S)
            for title, alpha in (
                ("the default gates", None),
                ("the hard gate alone, alpha 0.75 as in the paper", 0.75),
            ):
                found = [await runs(services, rows, seed, alpha) for seed in seeds]
                table(
                    f"TruthfulQA MC1, {title}; {len(seeds)} draws, in %",
                    (
                        "gold",
                        "answered",
                        "accuracy",
                        "unrefused",
                        "L2R answered",
                        "L2R accuracy",
                        "RAG answered",
                        "RAG accuracy",
                        "refusals right",
                        "known answered",
                        "unknown refused",
                        "right fact found",
                    ),
                    [
                        (
                            f"{share:g}",
                            shown([run[at]["answered"] for run in found], 1),
                            shown([run[at]["accuracy"] for run in found]),
                            shown([run[at]["accuracy_unrefused"] for run in found]),
                            *PAPER[share],
                            shown([run[at]["success"] for run in found]),
                            shown([run[at]["known_answered"] for run in found]),
                            shown([run[at]["unknown_refused"] for run in found]),
                            shown([run[at]["known_found"] for run in found]),
                        )
                        for at, share in enumerate(SHARES)
                    ],
                )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
