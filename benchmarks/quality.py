"""How well the default gate judges: the worked example of Learn to Refuse, and sets of questions with known answers.

    python -m benchmarks.quality DATA_FOLDER

DATA_FOLDER holds eloq_gold_1/questions.jsonl.gz and answerability/dev_*.jsonl.gz, rows of question, passage and
answerable. The nine questions need no data and come first. Nothing was trained, calibrated or given its threshold on
any of this; the probe's card tells what was in sight. SCOPEGATE_PROBE=FILE in front judges by another probe.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmarks.report import table
from scopegate.domain import Check, Decision, GateName, NewFact, Origin, Passage, Provenance, Verdict
from scopegate.gate.gatekeeper import Gatekeeper
from scopegate.services import Services
from scopegate.settings import Settings

FACTS = (
    "Leonardo da Vinci painted the Mona Lisa.",
    "The capital of the United States is Washington, D.C.",
    "DeepMind was founded in 2010.",
)
# Figure 4 of Learn to Refuse, with whether the paper's system answered.
NINE = (
    ("Who painted the Mona Lisa?", True),
    ("Who is Leonardo da Vinci", True),
    ("Where was Leonardo da Vinci born?", False),
    ("Where is the capital of the United States?", True),
    ("Where is the capital of China?", False),
    ("Where is Deepmind?", False),
    ("What was happened in 2010?", True),
    ("Was Deepmind founded in 2018?", True),
    ("When was Openai founded?", False),
)
READY_S = 60.0
SETS = {
    "eloq_gold_1": "eloq_gold_1/questions.jsonl.gz",
    "dev_squad2": "answerability/dev_squad2.jsonl.gz",
    "dev_nq": "answerability/dev_nq.jsonl.gz",
    "dev_clapnq": "answerability/dev_clapnq.jsonl.gz",
    "dev_repliqa": "answerability/dev_repliqa.jsonl.gz",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """What the gates said of one set: P(in scope), min S/C, the probe's threshold and alpha, and the truth."""

    answerable: NDArray[np.bool_]
    probability: NDArray[np.float64]
    ratio: NDArray[np.float64]
    threshold: float
    alpha: float


async def nine(services: Services) -> None:
    provenance = (Provenance(Origin.MANUAL, "figure 3", None, 1.0),)
    await services.knowledge.add("default", [NewFact(fact, provenance) for fact in FACTS])
    rows = []
    agreed = 0
    for question, answered in NINE:
        verdict = await services.gatekeeper.check(Check(question, explain=True))
        ours = verdict.decision is Decision.ANSWERABLE
        agreed += ours is answered
        hard, probe = gate(verdict, GateName.HARD), gate(verdict, GateName.PROBE)
        rows.append(
            (
                question,
                said(ours),
                said(answered),
                f"{hard:.2f}",
                f"{probe:.2f}",
                verdict.refused_by or "",
                why(verdict),
            )
        )
    columns = ("question", "ours", "paper", "min S/C", "P(in scope)", "refused by", "not covered")
    table(f"Learn to Refuse, figures 3 and 4: {agreed} of {len(NINE)} as in the paper", columns, rows)


def said(answered: bool) -> str:
    return "answers" if answered else "refuses"


def gate(verdict: Verdict, name: GateName) -> float:
    """The score that a gate gave."""
    return next(float(result.score or 0.0) for result in verdict.gates if result.gate is name)


def why(verdict: Verdict) -> str:
    if verdict.confusion is None:
        return ""
    return f"{verdict.confusion.type}: {', '.join(span.text for span in verdict.confusion.spans)}"


async def judged(gatekeeper: Gatekeeper, path: Path) -> Judged:
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    verdicts = [
        await gatekeeper.check(
            Check(row["question"], passages=(Passage("1", row["passage"]),), explain=True, deadline_ms=60_000)
        )
        for row in rows
    ]
    thresholds = {result.gate: result.threshold for result in verdicts[0].gates}
    return Judged(
        np.array([row["answerable"] for row in rows]),
        np.array([gate(verdict, GateName.PROBE) for verdict in verdicts]),
        np.array([gate(verdict, GateName.HARD) for verdict in verdicts]),
        thresholds[GateName.PROBE],
        thresholds[GateName.HARD],
    )


def figures(name: str, seen: Judged) -> list[tuple[str, ...]]:
    """A row for the probe alone and one for the whole gate; the gate's AUROC is of P, at 0 where hard refuses."""
    close = seen.ratio < seen.alpha
    return [
        row(name, "probe", seen.answerable, seen.probability, seen.probability >= seen.threshold),
        row("", "hard", seen.answerable, -seen.ratio, close),
        row(
            "",
            "both",
            seen.answerable,
            np.where(close, seen.probability, 0.0),
            close & (seen.probability >= seen.threshold),
        ),
    ]


def row(
    name: str, gates: str, truth: NDArray[np.bool_], scores: NDArray[np.float64], passed: NDArray[np.bool_]
) -> tuple[str, ...]:
    return (
        name,
        gates,
        str(len(truth)),
        f"{roc_auc_score(truth, scores):.3f}",
        f"{(passed == truth).mean():.3f}",
        f"{1.0 - passed[truth].mean():.3f}",
        f"{passed[~truth].mean():.3f}",
    )


async def main(arguments: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        services = Services(Settings(data_dir=Path(folder)))
        async with services.running():
            await services.knowledge.ready(READY_S)
            await nine(services)
            rows = []
            for name, file in SETS.items() if arguments else ():
                rows += figures(name, await judged(services.gatekeeper, Path(arguments[0]) / file))
    if rows:
        columns = ("set", "gates", "n", "AUROC", "accuracy", "answerable refused", "unanswerable passed")
        table("Documents as passages, at the shipped thresholds", columns, rows)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
