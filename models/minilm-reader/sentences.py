"""Which sentence answers: by similarity, by words, and by where the reader finds the answer, at several weights.

    python models/minilm-reader/sentences.py DATA_FOLDER

On held-out SquadShifts, with the probe that ships: the share of questions for which the sentence that comes first holds
the answer.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from calibrate import FACTS, held

from scopegate.answering.extractive import extract
from scopegate.domain import Check, GateName, Passage
from scopegate.services import Services
from scopegate.settings import Settings

WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
# Whatever is asked is answered.
POLICY = {"gates": (GateName.PROBE,), "probe_threshold": 0.0}


async def main(data: Path) -> None:
    right = dict.fromkeys(("similarity", *WEIGHTS), 0)
    questions = held(data, FACTS)
    with tempfile.TemporaryDirectory() as folder:
        services = Services(Settings(data_dir=Path(folder), probe="minilm-reader"))
        async with services.running():
            await services.knowledge.ready(60)
            for row in questions:
                passages = (Passage("1", row["passage"]),)
                check = Check(row["question"], passages=passages, overrides=POLICY, deadline_ms=60_000)
                judged = await services.gatekeeper.judge(check, services.gatekeeper.end_of(check))
                evidence = judged.verdict.evidence
                if judged.case is None:
                    continue
                right["similarity"] += any(answer in judged.case.evidence[0].text for answer in row["answers"])
                for weight in WEIGHTS:
                    chosen, _ = extract(check.question, evidence, judged.case.rarity, judged.places, weight)
                    right[weight] += any(answer in chosen[0].text for answer in row["answers"])
    for name, count in right.items():
        print(f"{name}: {count / len(questions):.3f} of {len(questions)}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
