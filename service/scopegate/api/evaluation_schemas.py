"""What requests for evaluation and calibration look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from scopegate.api.schemas import Closed, Integer, Line, Metadata, Number, PassageIn, Question, ScopeName

MAX_ROWS = 100_000
_Share = Annotated[Number, Field(gt=0, lt=1)]
_JobId = Annotated[str, Field(pattern=r"^[0-9A-Z]{26}$")]
Task = Literal["detection", "response", "retrieval", "multiple_choice", "agreement"]

_TAKES: Mapping[str, frozenset[str]] = {
    "detection": frozenset({"by", "votes", "seed"}),
    "response": frozenset({"methods", "votes", "examples", "seed"}),
    "retrieval": frozenset({"retrievers", "in_scope", "documents"}),
    "multiple_choice": frozenset(
        {"several", "scope", "gold_shares", "without", "alpha", "probe_threshold", "k", "llm", "seed"}
    ),
    "agreement": frozenset(),
}


def _once(names: list[Any]) -> list[Any]:
    if len(set(names)) < len(names):
        raise PydanticCustomError("repeats", "Each may be named once")
    return names


_UNIQUE = AfterValidator(_once)
_SET = Field(min_length=1, json_schema_extra={"uniqueItems": True})


class CalibrationQuestion(Closed):
    """A question and its label. Those of one group, else of the same passages, depend on each other."""

    question: Question
    answerable: StrictBool
    passages: Annotated[tuple[PassageIn, ...], Field(min_length=1, max_length=64)] | None = None
    group: Annotated[Line, Field(min_length=1)] | None = None


class CalibrateRequest(Closed):
    """What to learn thresholds from. max_wrong: the most unanswerable questions to let through, a share. delta: how
    likely that promise may be wrong. largest_group: how many unanswerable questions to come may depend on each other,
    if more than here. apply: whether the thresholds become the scope's; that needs an admin's key."""

    questions: Annotated[tuple[CalibrationQuestion, ...], Field(min_length=1, max_length=MAX_ROWS)]
    max_wrong: _Share = 0.05
    delta: _Share = 0.1
    largest_group: Annotated[Integer, Field(ge=1, le=MAX_ROWS)] | None = None
    apply: StrictBool = False


class EvaluateOptions(TypedDict, total=False):
    """How a task is done; each task takes some of these, and what is not given is as usual."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    by: Annotated[list[Literal["llm", "gates"]], _SET, _UNIQUE]
    votes: Annotated[Integer, Field(ge=1, le=99)]
    seed: Annotated[Integer, Field(ge=0, lt=2**31)]
    methods: Annotated[list[Literal["basic", "two_shot", "reasoning"]], _SET, _UNIQUE]
    examples: Literal["given", "none"]
    retrievers: Annotated[list[Literal["bm25", "embedder", "sentences"]], _SET, _UNIQUE]
    in_scope: StrictBool
    documents: Annotated[list[Metadata], Field(max_length=MAX_ROWS)]
    several: StrictBool
    scope: ScopeName
    gold_shares: Annotated[list[Annotated[Number, Field(ge=0, le=1)]], Field(max_length=21), _SET, _UNIQUE]
    without: Annotated[list[Literal["hard", "probe", "soft", "step_by_step"]], Field(max_length=4)]
    alpha: Annotated[Number, Field(gt=0, le=1_000_000)]
    probe_threshold: Annotated[Number, Field(ge=0, le=1)]
    k: Annotated[Integer, Field(ge=1, le=100)]
    llm: StrictBool


class EvaluateRequest(Closed):
    """A task, the rows that it is done on, or the generation job that made them, and how."""

    task: Task
    dataset: _JobId | Annotated[list[Metadata], Field(min_length=1, max_length=MAX_ROWS)]
    options: EvaluateOptions = Field(default_factory=EvaluateOptions)

    @model_validator(mode="after")
    def _fits(self) -> EvaluateRequest:
        if others := sorted(self.options.keys() - _TAKES[self.task]):
            raise PydanticCustomError("option", "The task takes no option {name}", {"name": others[0]})
        if "scope" in self.options and "gold_shares" in self.options:
            raise PydanticCustomError("two_knowledges", "Give scope or gold_shares, not both")
        return self

    def spec(self, rows: list[Any]) -> dict[str, Any]:
        """The job's spec."""
        return {"task": self.task, "dataset": rows, "options": dict(self.options)}
