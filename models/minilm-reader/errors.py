"""Shows what the reader gets wrong: twenty questions each way, with what the confusion makes of them.

    python models/minilm-reader/errors.py FILE.jsonl.gz...

Rows of id, question, passage, answers and answerable. The questions are drawn from all files alike, at the shipped
threshold, and stand with the window that decided and the words that the evidence does not cover.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pairs import rows

from scopegate.domain import Check, GateName, Passage
from scopegate.gate.confusion import confusion
from scopegate.services import Services
from scopegate.settings import Settings

SHOWN = 20
SEED = 0
POLICY = {"gates": (GateName.PROBE,)}


async def wrong(services: Services, row: dict[str, Any]) -> str | None:
    """What there is to be seen of a question that is decided wrongly; None of another."""
    check = Check(row["question"], passages=(Passage("1", row["passage"]),), overrides=POLICY, deadline_ms=60_000)
    judged = await services.gatekeeper.judge(check, services.gatekeeper.end_of(check))
    (probe,) = judged.verdict.gates
    if probe.passed is row["answerable"] or judged.case is None:
        return None
    found = confusion(check.question, judged.case.evidence, has_history=False, rarity=judged.case.rarity)
    read = [piece.text for piece in judged.case.reading if piece.id in probe.detail["window"]]
    return "\n".join(
        (
            f"{row['id']}  P {probe.score:.2f}  {row['question']}",
            f"  answers: {row['answers']}",
            f"  {found.type}: {', '.join(span.text for span in found.spans)}",
            f"  read: {' '.join(read)}",
        )
    )


async def main(files: Sequence[Path]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        services = Services(Settings(data_dir=Path(folder), probe="minilm-reader"))
        async with services.running():
            await services.knowledge.ready(60)
            for answerable, title in ((True, "Answerable, refused"), (False, "Unanswerable, passed")):
                print(f"\n{title}\n")
                for at, file in enumerate(files):
                    share = SHOWN // len(files) + (at < SHOWN % len(files))
                    asked = [row for row in rows(file) if row["answerable"] is answerable]
                    random.Random(SEED).shuffle(asked)
                    shown = 0
                    for row in asked:
                        if shown == share:
                            break
                        if (seen := await wrong(services, row)) is not None:
                            shown += 1
                            print(seen)


if __name__ == "__main__":
    asyncio.run(main([Path(name) for name in sys.argv[1:]]))
