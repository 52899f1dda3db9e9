"""How often responses defuse out-of-scope questions (ELOQ, Algorithm 2, steps 1 and 4 to 6; tables 5 and 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scopegate.domain import Conflict, Invalid
from scopegate.evaluation.asking import chunks, majority, votes
from scopegate.evaluation.datasets import Asked, asked
from scopegate.evaluation.shares import by_topic, confusion, share
from scopegate.jobs.work import Done, Item
from scopegate.llm.asker import Asker, seed_of
from scopegate.llm.asks import Ask, LlmAway, LlmFailed
from scopegate.llm.replies import Unread, spoken
from scopegate.prompts import load_prompt

METHODS = ("basic", "two_shot", "reasoning")
# Table 7: with or without examples in the judge's prompt, and how many votes.
JUDGES = (("none", 1), ("given", 1), ("given", 3), ("given", 9))
_MOST_VOTES = max(count for _, count in JUDGES)
_GIVEN = "given"
_TOKENS = 1_024
_NO_LLM = "this job needs an LLM, and none is set (SCOPEGATE_LLM_URL)"


class Response:
    """A task on out-of-scope questions with documents; in-scope ones are passed over.

    Rows with a response are judged as they are; for others the answerer is asked. options: methods: the ways to ask it.
    votes: the judge's m. examples: whether its prompt has them. seed. Where people have said whether a row's response
    defuses the question, the judge is measured against them, for each way of JUDGES.
    """

    def __init__(self, answerer: Asker | None, judge: Asker | None) -> None:
        self._answerer = answerer
        self._judge = judge

    async def items(self, spec: Mapping[str, Any]) -> Sequence[Item]:
        """See Work. Raises Invalid where rows are no such questions or all in scope, Conflict where no LLM is set."""
        if self._answerer is None or self._judge is None:
            raise Conflict(_NO_LLM)
        rows = await asyncio.to_thread(asked, spec["dataset"])
        if all(row.in_scope for row in rows):
            raise Invalid("none of the questions is out of scope, and only those can be defused")
        return [item for item, row in zip(chunks(len(rows), 1), rows, strict=True) if not row.in_scope]

    async def do(self, spec: Mapping[str, Any], item: Item, stage: Callable[[str], None]) -> Done:
        """See Work. A row for each response, with the votes on it."""
        (number,) = item.body["numbers"]
        (question,) = asked([spec["dataset"][number]], first=number + 1)
        options, rows, counts = spec.get("options", {}), [], {"responses": 0, "failed.response": 0, "undecided": 0}
        methods = [_GIVEN] if question.response is not None else options.get("methods", METHODS)
        for method in methods:
            stage("responses")
            try:
                said = question.response or await self._response(question, method, options.get("seed", 0))
                stage("votes")
                cast = await self._votes(question, said, options)
            except LlmAway:
                raise
            except LlmFailed:
                counts["failed.response"] += 1
                continue
            usual = cast[options.get("examples", _GIVEN)][: options.get("votes", 9)]
            counts["responses"] += 1
            counts["undecided"] += majority(usual) is None
            rows.append(
                {
                    "id": question.id,
                    "topic": question.topic,
                    "question": question.question,
                    "method": method,
                    "response": said,
                    "defused": majority(usual),
                    "votes": cast,
                    "people": question.defused if method == _GIVEN else None,
                }
            )
        return Done(tuple(rows), counts)

    async def finish(self, spec: Mapping[str, Any], done: Sequence[Done]) -> Mapping[str, Any]:
        """See Work. By method: the share defused over all and by topic, of the responses that the votes decide; where
        people have labelled, the accuracy of each way to judge."""
        options = spec.get("options", {})
        rows = [row for each in done for row in each.rows]
        methods = {}
        for method in dict.fromkeys(row["method"] for row in rows):
            told = [row for row in rows if row["method"] == method and row["defused"] is not None]
            methods[method] = by_topic((row["topic"], row["defused"]) for row in told)
        labelled = [row for row in rows if row["people"] is not None]
        judges = []
        for examples, count in JUDGES if labelled else ():
            pairs = [(row["people"], majority(row["votes"][examples][:count])) for row in labelled]
            told_pairs = [(truth, said) for truth, said in pairs if said is not None]
            judges.append(
                {
                    "examples": examples,
                    "votes": count,
                    "undecided": len(pairs) - len(told_pairs),
                    **confusion(told_pairs),
                    "accuracy_of_all": share([truth == said for truth, said in pairs]),
                }
            )
        return {
            "task": "response",
            "questions": len({row["id"] for row in rows}),
            "answerer": self._answerer.model if self._answerer else None,
            "judge": self._judge.model if self._judge else None,
            "examples": options.get("examples", _GIVEN),
            "votes": options.get("votes", 9),
            "prompts": [
                *(load_prompt(f"response_{method}").id for method in methods if method != _GIVEN),
                *(
                    load_prompt("defusion", examples=each).id
                    for each in dict.fromkeys(each for row in rows for each in row["votes"])
                ),
            ],
            "methods": methods,
            "judges": judges,
        }

    async def _response(self, question: Asked, method: str, seed: int) -> str:
        if self._answerer is None:
            raise Conflict(_NO_LLM)
        prompt = load_prompt(f"response_{method}")
        turns = prompt.render(document=question.document, question=question.question)
        ask = Ask(turns, _TOKENS, seed=seed_of(seed, prompt.id, question.document, question.question))
        return await self._answerer.read(ask, _said)

    async def _votes(self, question: Asked, said: str, options: Mapping[str, Any]) -> dict[str, list[bool | None]]:
        """By examples: as many votes as any way of judging needs; fewer votes are the first of them, so that the ways
        differ in nothing else."""
        if self._judge is None:
            raise Conflict(_NO_LLM)
        wanted = {options.get("examples", _GIVEN): options.get("votes", 9)}
        if question.defused is not None and question.response is not None:
            wanted = {examples: max(options.get("votes", 9), _MOST_VOTES) for examples in dict(JUDGES)}
        return {
            examples: await votes(
                self._judge,
                load_prompt("defusion", examples=examples),
                "Defused",
                count,
                options.get("seed", 0),
                document=question.document,
                question=question.question,
                response=said,
            )
            for examples, count in wanted.items()
        }


def _said(text: str) -> str:
    said = spoken(text)
    if not said:
        raise Unread("it says nothing")
    return said
