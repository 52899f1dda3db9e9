"""How well out-of-scope questions are told from others (ELOQ, Algorithm 2, steps 2 and 3; figure 2)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scopegate.domain import Check, Conflict, Invalid, Passage
from scopegate.evaluation.asking import chunks, judged, majority, refused, votes
from scopegate.evaluation.datasets import asked
from scopegate.evaluation.shares import by_topic, confusion
from scopegate.gate.gatekeeper import Gatekeeper
from scopegate.jobs.work import Done, Item
from scopegate.llm.asker import Asker
from scopegate.llm.asks import LlmAway, LlmFailed
from scopegate.prompts import load_prompt

_PROMPT = load_prompt("filter_answerable")
_CHUNK = 4
# Of a long document, up to a space if there is one.
_PIECE = re.compile(r".{1,19999}(?:\s|\Z)|.{20000}", re.DOTALL)


class Detection:
    """A task on questions with documents, in and out of scope.

    options: by: "llm" (votes of the judge) and "gates" (this service's, with the document as the passage), as there are
    by default. votes: m. seed.
    """

    def __init__(self, gatekeeper: Gatekeeper, judge: Asker | None) -> None:
        self._gatekeeper = gatekeeper
        self._judge = judge

    async def items(self, spec: Mapping[str, Any]) -> Sequence[Item]:
        """See Work. Raises Invalid where rows are no such questions, Conflict where an LLM is wanted and not set."""
        if "llm" in self._by(spec) and self._judge is None:
            raise Conflict("this job needs an LLM to judge, and none is set (SCOPEGATE_LLM_URL)")
        return chunks(len(await asyncio.to_thread(asked, spec["dataset"])), _CHUNK)

    async def do(self, spec: Mapping[str, Any], item: Item, stage: Callable[[str], None]) -> Done:
        """See Work. A row for each question: whether each judge calls it out of scope; null where it cannot tell."""
        options, rows, undecided = spec.get("options", {}), [], 0
        for number in item.body["numbers"]:
            # Read here and not all at once: a spec may hold many thousand rows.
            (question,) = asked([spec["dataset"][number]], first=number + 1)
            said: dict[str, bool | None] = {}
            cast: list[bool | None] = []
            if "gates" in self._by(spec):
                stage("asking the gates")
                pieces = _PIECE.findall(question.document)
                passages = tuple(Passage(f"{place}", piece) for place, piece in enumerate(pieces))
                try:
                    said["gates"] = refused(await judged(self._gatekeeper, Check(question.question, passages=passages)))
                except Invalid:  # more sentences than the gates read
                    said["gates"] = None
            if "llm" in self._by(spec) and self._judge is not None:
                stage("asking the LLM")
                try:
                    cast = await votes(
                        self._judge,
                        _PROMPT,
                        "Confusing",
                        options.get("votes", 3),
                        options.get("seed", 0),
                        document=question.document,
                        question=question.question,
                    )
                    said["llm"] = majority(cast)
                except LlmAway:
                    raise
                except LlmFailed:
                    said["llm"] = None
            undecided += None in said.values()
            rows.append(
                {
                    "id": question.id,
                    "topic": question.topic,
                    "question": question.question,
                    "in_scope": question.in_scope,
                    "out_of_scope": said,
                    "votes": cast,
                }
            )
        return Done(tuple(rows), {"questions": len(rows), "undecided": undecided})

    async def finish(self, spec: Mapping[str, Any], done: Sequence[Done]) -> Mapping[str, Any]:
        """See Work. By judge: accuracy over all and by topic; precision, recall and F1 of "out of scope". Questions
        that a judge leaves undecided are counted, and are no part of its figures."""
        rows = [row for each in done for row in each.rows]
        judges = {}
        for name in self._by(spec):
            told = [row for row in rows if row["out_of_scope"].get(name) is not None]
            judges[name] = {
                "undecided": len(rows) - len(told),
                **confusion([(not row["in_scope"], row["out_of_scope"][name]) for row in told]),
                "by_topic": by_topic((row["topic"], row["out_of_scope"][name] != row["in_scope"]) for row in told),
            }
        model = self._judge.model if self._judge is not None and "llm" in judges else None
        return {"task": "detection", "questions": len(rows), "model": model, "prompt": _PROMPT.id, "judges": judges}

    def _by(self, spec: Mapping[str, Any]) -> list[str]:
        usual = ["gates"] if self._judge is None else ["llm", "gates"]
        return list(spec.get("options", {}).get("by", usual))
