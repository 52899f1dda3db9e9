"""How well the gates judge: the worked example of Learn to Refuse, and sets of questions with known answers.

    python -m benchmarks.quality DATA_FOLDER

DATA_FOLDER holds eloq_gold_1/questions.jsonl.gz and answerability/dev_*.jsonl.gz, rows of question, passage and
answerable. The nine questions need no data and come first. The probes that ship stand beside each other and beside
similarity alone (the hard gate), each at its shipped threshold. Nothing was trained, calibrated or given its threshold
on any of this; the cards tell what was in sight. SCOPEGATE_PROBE=FILE in front adds another probe.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmarks.report import milliseconds, table
from scopegate.domain import Check, Decision, GateResult, NewFact, Origin, Passage, Provenance, Verdict
from scopegate.gate.gatekeeper import Gatekeeper
from scopegate.services import Services
from scopegate.settings import Settings
from scopegate.training.metrics import measure

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
PROBES = ("feature-probe", "minilm-reader")
CAUGHT = 0.95
SETS = {
    "eloq_gold_1": "eloq_gold_1/questions.jsonl.gz",
    "dev_squad2": "answerability/dev_squad2.jsonl.gz",
    "dev_nq": "answerability/dev_nq.jsonl.gz",
    "dev_clapnq": "answerability/dev_clapnq.jsonl.gz",
    "dev_repliqa": "answerability/dev_repliqa.jsonl.gz",
    "dev_squad2, 5 passages": "answerability/dev_squad2.jsonl.gz",
}
# How many passages of other questions stand beside a question's own.
STRANGERS = {"dev_squad2, 5 passages": 4}
SEED = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """What a judge said of one set. scores: higher is likelier answerable. seconds: of each check, on one thread.

    probability: whether scores are probabilities.
    """

    answerable: NDArray[np.bool_]
    scores: NDArray[np.float64]
    threshold: float
    seconds: list[float]
    probability: bool


async def nine(services: Services, name: str) -> tuple[Judged, Judged, float]:
    """Prints what is decided of the nine questions; see judged for what comes back."""
    provenance = (Provenance(Origin.MANUAL, "figure 3", None, 1.0),)
    await services.knowledge.add("default", [NewFact(fact, provenance) for fact in FACTS])
    verdicts = [await services.gatekeeper.check(Check(question, explain=True)) for question, _ in NINE]
    answered = np.array([answer for _, answer in NINE])
    rows = [
        (
            question,
            said(verdict.decision is Decision.ANSWERABLE),
            said(answer),
            *(f"{result.score or 0.0:.2f}" for result in verdict.gates),
            verdict.refused_by or "",
            why(verdict),
        )
        for (question, answer), verdict in zip(NINE, verdicts, strict=True)
    ]
    similarity, judge, together = apart(verdicts, answered)
    columns = ("question", "ours", "paper", "min S/C", "P(in scope)", "refused by", "not covered")
    agreed = round(together * len(NINE))
    table(f"Learn to Refuse, figures 3 and 4, {name}: {agreed} of {len(NINE)} as in the paper", columns, rows)
    return similarity, judge, together


def said(answered: bool) -> str:
    return "answers" if answered else "refuses"


def why(verdict: Verdict) -> str:
    if verdict.confusion is None:
        return ""
    return f"{verdict.confusion.type}: {', '.join(span.text for span in verdict.confusion.spans)}"


async def judged(gatekeeper: Gatekeeper, path: Path, strangers: int) -> tuple[Judged, Judged, float]:
    """What similarity alone, and the probe, say of the questions in a file; how many both together decide rightly."""
    rng = random.Random(SEED)
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    answerable = np.array([row["answerable"] for row in rows])
    verdicts = []
    texts = list(dict.fromkeys(row["passage"] for row in rows))
    for row in rows:
        brought = [row["passage"], *rng.sample([text for text in texts if text != row["passage"]], strangers)]
        rng.shuffle(brought)
        passages = tuple(Passage(f"{number}", text) for number, text in enumerate(brought))
        check = Check(row["question"], passages=passages, explain=True, deadline_ms=60_000)
        verdicts.append(await gatekeeper.check(check))
    return apart(verdicts, answerable)


def apart(verdicts: Sequence[Verdict], answerable: NDArray[np.bool_]) -> tuple[Judged, Judged, float]:
    """What the hard gate and the probe said; how many both together decide rightly."""
    hard, probe = zip(*(verdict.gates for verdict in verdicts), strict=True)
    # The hard gate, asked first, waits for what is retrieved.
    retrieved = [result.elapsed_ms / 1000 for result in hard]
    both = [first + result.elapsed_ms / 1000 for first, result in zip(retrieved, probe, strict=True)]
    passed = np.array([first.passed and second.passed for first, second in zip(hard, probe, strict=True)])
    return (
        Judged(answerable, -scores(hard, np.inf), -hard[0].threshold, retrieved, probability=False),
        Judged(answerable, scores(probe, 0.0), probe[0].threshold, both, probability=True),
        float((passed == answerable).mean()),
    )


def scores(results: Sequence[GateResult], broken: float) -> NDArray[np.float64]:
    """Of each question. broken: of one that the gate broke over, which refuses."""
    return np.array([broken if result.score is None else result.score for result in results])


def row(name: str, judge: str, seen: Judged, together: float | None = None) -> tuple[str, ...]:
    truth, passed = seen.answerable, seen.scores >= seen.threshold
    strict = np.quantile(seen.scores[~truth], CAUGHT, method="higher")
    error = measure(seen.scores, truth, seen.threshold).ece if seen.probability else None
    return (
        name,
        judge,
        str(len(truth)),
        f"{roc_auc_score(truth, seen.scores):.3f}",
        f"{(passed == truth).mean():.3f}",
        f"{1.0 - passed[truth].mean():.3f}",
        f"{passed[~truth].mean():.3f}",
        f"{(seen.scores[truth] <= strict).mean():.3f}",
        "" if error is None else f"{error:.3f}",
        "" if together is None else f"{together:.3f}",
        milliseconds(seen.seconds, 50),
    )


async def main(arguments: Sequence[str]) -> None:
    found: dict[str, list[tuple[str, ...]]] = {name: [] for name in ("nine", *SETS)}
    for probe in dict.fromkeys((*PROBES, Settings().probe)):
        with tempfile.TemporaryDirectory() as folder:
            services = Services(Settings(data_dir=Path(folder), probe=probe, embed_threads=1, embed_cache=0))
            async with services.running():
                await services.knowledge.ready(READY_S)
                heard = {"nine": await nine(services, probe)}
                for name, file in SETS.items() if arguments else ():
                    heard[name] = await judged(services.gatekeeper, Path(arguments[0]) / file, STRANGERS.get(name, 0))
                for name, (similarity, judge, together) in heard.items():
                    if not found[name]:
                        found[name].append(row(name, "similarity", similarity))
                    found[name].append(row("", probe, judge, together))
    columns = (
        *("set", "judge", "n", "AUROC", "accuracy", "answerable refused", "unanswerable passed"),
        *("refused where 95 % are caught", "ECE", "accuracy behind the hard gate", "p50 ms"),
    )
    table("At the shipped thresholds, on one thread", columns, list(chain.from_iterable(found.values())))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
