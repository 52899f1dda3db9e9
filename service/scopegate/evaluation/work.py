"""Evaluation as a job: each task is work of its own, over a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from scopegate.domain import Invalid, JobKind
from scopegate.evaluation.agreement import Agreement
from scopegate.evaluation.detection import Detection
from scopegate.evaluation.multiple_choice import MultipleChoice
from scopegate.evaluation.response import Response
from scopegate.evaluation.retrieval import Retrieval
from scopegate.gate.gatekeeper import Gatekeeper
from scopegate.inference.embedder import Embedder
from scopegate.jobs.work import Done, Item
from scopegate.knowledge import Knowledge
from scopegate.llm.asker import Asker
from scopegate.settings import Settings


class Task(Protocol):
    """What Work is, on a spec of {"task", "dataset": rows, "options"}."""

    async def items(self, spec: Mapping[str, Any]) -> Sequence[Item]:
        """See Work. Raises Invalid where rows or options make no sense."""

    async def do(self, spec: Mapping[str, Any], item: Item, stage: Callable[[str], None]) -> Done:
        """See Work."""

    async def finish(self, spec: Mapping[str, Any], done: Sequence[Done]) -> Mapping[str, Any]:
        """See Work. The summary holds all that tables and figures are made of."""


class Evaluate:
    """Work on any of the tasks. answerer, judge: None where no LLM is set."""

    kind = JobKind.EVALUATE

    def __init__(
        self,
        gatekeeper: Gatekeeper,
        knowledge: Knowledge,
        embedder: Embedder,
        settings: Settings,
        *,
        answerer: Asker | None,
        judge: Asker | None,
    ) -> None:
        self._tasks: Mapping[str, Task] = {
            "detection": Detection(gatekeeper, judge),
            "response": Response(answerer, judge),
            "retrieval": Retrieval(embedder, settings),
            "multiple_choice": MultipleChoice(gatekeeper, knowledge, embedder, settings, answerer),
            "agreement": Agreement(),
        }

    async def items(self, spec: Mapping[str, Any]) -> Sequence[Item]:
        """See Work."""
        return await self._task(spec).items(spec)

    async def do(self, spec: Mapping[str, Any], item: Item, stage: Callable[[str], None]) -> Done:
        """See Work."""
        return await self._task(spec).do(spec, item, stage)

    async def finish(self, spec: Mapping[str, Any], done: Sequence[Done]) -> Mapping[str, Any]:
        """See Work. whole: False of a data set that was not made to its end."""
        summary = await self._task(spec).finish(spec, done)
        return summary if spec.get("whole", True) else {**summary, "whole": False}

    def _task(self, spec: Mapping[str, Any]) -> Task:
        if spec["task"] not in self._tasks:
            raise Invalid(f"there is no task {spec['task']!r}; there are {', '.join(self._tasks)}")
        return self._tasks[spec["task"]]
