"""Shows what the reader gets wrong: twenty questions each way, with what the confusion makes of them.

    python models/minilm-reader/errors.py FILE.jsonl.gz...

Rows of id, question, passage, answers and answerable; the files take turns. A question stands with its P(in scope), the
window that decided at the shipped threshold, and the words that the evidence does not cover.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Sequence
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


def shuffled(file: Path, answerable: bool) -> list[dict[str, Any]]:
    asked = [row for row in rows(file) if row["answerable"] is answerable]
    random.Random(SEED).shuffle(asked)
    return asked


async def wrong(services: Services, asked: Sequence[dict[str, Any]]) -> AsyncIterator[str]:
    """Those that are decided wrongly."""
    for row in asked:
        if (seen := await shown(services, row)) is not None:
            yield seen


async def shown(services: Services, row: dict[str, Any]) -> str | None:
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
                waiting = deque(wrong(services, shuffled(file, answerable)) for file in files)
                for _ in range(SHOWN):
                    while waiting and (seen := await anext(waiting[0], None)) is None:
                        waiting.popleft()
                    if not waiting:
                        break
                    print(seen)
                    waiting.rotate(-1)


if __name__ == "__main__":
    asyncio.run(main([Path(name) for name in sys.argv[1:]]))
