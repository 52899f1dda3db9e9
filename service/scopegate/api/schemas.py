"""What requests look like, and the domain's types made of them. Responses are the domain's types themselves."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from scopegate.api.problems import Problem, details, of_fields
from scopegate.domain import (
    MAX_FACTS,
    Check,
    Document,
    GateName,
    JobKind,
    JobStatus,
    Mode,
    NewFact,
    OnError,
    Origin,
    Passage,
    Policy,
    Provenance,
    Scope,
    Speaker,
    Turn,
    Verdict,
)
from scopegate.ids import new_id

MAX_QUESTION = 4096
MAX_TEXT = 20_000
MAX_TURNS = 256
MAX_DEPTH = 16
# What the columns of the store hold.
MAX_FACT_ID = 128
MAX_DOCUMENT_ID = 256
MAX_KEY = 2**63 - 1

# C0 controls but tab and line ends: no store keeps NUL, and no text means the others.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")
_LINE = r"^[^\x00-\x08\x0e-\x1f]*$"
_TEXT = r"^[^\x00-\x08\x0e-\x1f]*[^\s\x00-\x1f\x7f-\xa0][^\x00-\x08\x0e-\x1f]*$"


def line(text: str) -> str:
    """The text itself. Raises where it has control characters."""
    if _CONTROL.search(text):
        raise PydanticCustomError("control_character", "Text may not have control characters but tabs and line ends")
    return text


def _text(text: str) -> str:
    if not any(character.isprintable() and not character.isspace() for character in text):
        raise PydanticCustomError("blank", "Text may not be blank")
    return line(text)


def question_of(turn: str) -> str:
    """The question that a user turn is. Raises where it is blank, too long, or has control characters."""
    if len(turn) > MAX_QUESTION:
        raise PydanticCustomError("too_long", f"The last user turn may have at most {MAX_QUESTION} characters")
    return _text(turn)


def _position(cursor: str) -> str:
    if int(cursor) > MAX_KEY:
        raise PydanticCustomError("cursor", "The cursor is none that a page gave")
    return cursor


def _utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("time_range", "The time is out of range in UTC") from None


def _storable(value: Mapping[str, Any]) -> Mapping[str, Any]:
    _check_json(value, 0)
    return value


def _check_json(value: Any, depth: int) -> None:
    """Raises where JSON holds what a store or another parser would not give back as it was."""
    if depth > MAX_DEPTH:
        raise PydanticCustomError("depth", "Metadata may not be nested more than 16 deep")
    match value:
        case str():
            line(value)
        case float() if not math.isfinite(value):
            raise PydanticCustomError("finite_number", "Numbers must be finite")
        case int() if not -(2**63) <= value < 2**63:
            raise PydanticCustomError("int_range", "Integers must fit 64 bits")
        case dict():
            for name, item in value.items():
                line(name)
                _check_json(item, depth + 1)
        case list():
            for item in value:
                _check_json(item, depth + 1)


Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Integer = Annotated[int, Strict()]
# In (0, 1]; less than this is no confidence at all, and S/C would leave the numbers.
Confidence = Annotated[Number, Field(ge=1e-9, le=1)]
Line = Annotated[str, AfterValidator(line), Field(max_length=1024, json_schema_extra={"pattern": _LINE})]
Text = Annotated[
    str, AfterValidator(_text), Field(min_length=1, max_length=MAX_TEXT, json_schema_extra={"pattern": _TEXT})
]
Question = Annotated[
    str, AfterValidator(_text), Field(min_length=1, max_length=MAX_QUESTION, json_schema_extra={"pattern": _TEXT})
]
ScopeName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
FactId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:~-]*$", max_length=MAX_FACT_ID)]
DocumentId = Annotated[Line, Field(max_length=MAX_DOCUMENT_ID)]
Position = Annotated[str, Field(pattern=r"^[0-9]{1,19}$"), AfterValidator(_position)]
Time = Annotated[AwareDatetime, Strict(), AfterValidator(_utc)]
Metadata = Annotated[dict[str, Any], AfterValidator(_storable)]
PolicyField = Literal["alpha", "k", "gates", "probe_threshold", "votes", "mode", "on_error"]


def _no_repeats(gates: tuple[GateName, ...]) -> tuple[GateName, ...]:
    if len(set(gates)) < len(gates):
        raise PydanticCustomError("repeats", "A gate may be named once")
    return gates


class PolicyFields(TypedDict, total=False):
    """How questions are judged; a field that is not given is inherited."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    alpha: Annotated[Number, Field(gt=0, le=1_000_000)]
    k: Annotated[Integer, Field(ge=1, le=100)]
    gates: Annotated[
        tuple[GateName, ...],
        Field(min_length=1, json_schema_extra={"uniqueItems": True}),
        AfterValidator(_no_repeats),
    ]
    probe_threshold: Annotated[Number, Field(ge=0, le=1)]
    votes: Annotated[Integer, Field(ge=1, le=99)]
    mode: Mode
    on_error: OnError


class Closed(BaseModel):
    """A shape that takes no field it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PassageIn(Closed):
    """A text to be judged instead of the scope's facts; without an id it is known by its position, p1 and so on."""

    id: Annotated[Line, Field(min_length=1, max_length=128)] | None = None
    text: Text
    source: Line | None = None
    confidence: Confidence = 1.0


class Message(Closed):
    """A turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, AfterValidator(line), Field(max_length=MAX_TEXT, json_schema_extra={"pattern": _LINE})]


_EXACTLY_ONE: JsonDict = {
    "oneOf": [
        {
            "required": ["question"],
            "properties": {"question": {"type": "string"}, "messages": {"type": "null"}},
        },
        {
            "required": ["messages"],
            "properties": {
                "question": {"type": "null"},
                "messages": {
                    "type": "array",
                    "contains": {
                        "properties": {
                            "role": {"const": "user"},
                            "content": {"type": "string", "maxLength": MAX_QUESTION, "pattern": _TEXT},
                        },
                        "required": ["role", "content"],
                    },
                },
            },
        },
    ]
}


class Terms(Closed):
    """How a question is to be judged, and by what."""

    passages: Annotated[tuple[PassageIn, ...], Field(min_length=1, max_length=64)] | None = None
    policy: PolicyFields = Field(default_factory=PolicyFields)
    explain: StrictBool = False
    deadline_ms: Annotated[Number, Field(ge=1, le=60_000)] | None = None
    min_revision: Annotated[Integer, Field(ge=0, lt=2**63)] | None = None

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if self.passages is not None:
            ids = [passage.id or f"p{n}" for n, passage in enumerate(self.passages, 1)]
            if len(set(ids)) < len(ids):
                raise PydanticCustomError("repeats", "Two passages have the same id")
        return self

    def check(self, question: str, scope: str, history: tuple[Turn, ...]) -> Check:
        """The check of a question on these terms."""
        passages = None
        if self.passages is not None:
            passages = tuple(
                Passage(passage.id or f"p{n}", passage.text, passage.source, passage.confidence)
                for n, passage in enumerate(self.passages, 1)
            )
        return Check(question, scope, history, passages, self.policy, self.explain, self.deadline_ms, self.min_revision)


class CheckRequest(Terms):
    """A question, alone or as the last user turn of a conversation, and how to judge it."""

    model_config = ConfigDict(json_schema_extra=_EXACTLY_ONE)

    question: Question | None = None
    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=MAX_TURNS)] | None = None
    scope: ScopeName = "default"

    @model_validator(mode="after")
    def _one_question(self) -> CheckRequest:
        if (self.question is None) == (self.messages is None):
            raise PydanticCustomError("one_question", "Give exactly one of question and messages")
        if self.messages is not None:
            asked = next((turn.content for turn in reversed(self.messages) if turn.role == "user"), None)
            if asked is None:
                raise PydanticCustomError("no_user_turn", "messages has no user turn, which would be the question")
            question_of(asked)
        return self

    def to_domain(self) -> Check:
        """The check asked for."""
        history: tuple[Turn, ...] = ()
        question = self.question
        if self.messages is not None:
            last = max(n for n, turn in enumerate(self.messages) if turn.role == "user")
            question = self.messages[last].content
            history = tuple(
                Turn(Speaker(turn.role), turn.content) for turn in self.messages[:last] if turn.role != "system"
            )
        assert question is not None  # noqa: S101 - _one_question saw to it
        return self.check(question, self.scope, history)


class AnswerRequest(CheckRequest):
    """A question to be answered. stream: as server-sent events, the answer's text as it comes."""

    stream: StrictBool = False


def _or_problem(value: Any, validate: Any) -> CheckRequest | Problem:
    try:
        request: CheckRequest = validate(value)
    except ValidationError as error:
        return of_fields(details(error))
    return request


class BatchRequest(Closed):
    """Checks to be made side by side; one that does not fit the schema is answered with a problem in its place."""

    items: Annotated[list[Annotated[CheckRequest, WrapValidator(_or_problem)]], Field(min_length=1, max_length=256)]


class BatchResult(TypedDict):
    """A verdict or a problem for each item, in order."""

    results: list[Verdict | Problem]


class ProvenanceIn(Closed):
    """One reason to hold a fact."""

    origin: Origin
    source: Line | None = None
    document_id: DocumentId | None = None
    confidence: Confidence = 1.0


class FactIn(Closed):
    """A fact to be added, or a line of an export."""

    text: Text
    confidence: Confidence | None = None
    source: Line | None = None
    metadata: Metadata = Field(default_factory=dict)
    id: FactId | None = None
    provenances: Annotated[tuple[ProvenanceIn, ...], Field(min_length=1, max_length=10_000)] | None = None
    created_at: Time | None = None
    updated_at: Time | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> FactIn:
        if self.provenances is not None:
            if self.source is not None:
                raise PydanticCustomError("two_sources", "Give source or provenances, not both")
            highest = max(provenance.confidence for provenance in self.provenances)
            if self.confidence is not None and self.confidence != highest:
                raise PydanticCustomError("confidence", "confidence is not the highest of the provenances'")
        return self

    def to_domain(self) -> NewFact:
        """The fact to be added; without provenances, somebody said it."""
        if self.provenances is None:
            confidence = 1.0 if self.confidence is None else self.confidence
            provenances: tuple[Provenance, ...] = (Provenance(Origin.MANUAL, self.source, None, confidence),)
        else:
            provenances = tuple(
                Provenance(given.origin, given.source, given.document_id, given.confidence)
                for given in self.provenances
            )
        return NewFact(self.text, provenances, self.metadata, self.id, self.created_at, self.updated_at)


class FactsRequest(Closed):
    """Facts to be added, all or none."""

    facts: Annotated[tuple[FactIn, ...], Field(min_length=1, max_length=MAX_FACTS)]


class FactChange(TypedDict, total=False):
    """What a fact shall be from now on; a field that is not given stays. A confidence is that of one who says so."""

    __pydantic_config__ = ConfigDict(extra="forbid", json_schema_extra={"minProperties": 1})  # type: ignore[misc]

    text: Text
    confidence: Confidence
    metadata: Metadata


class DocumentIn(Closed):
    """A text to be split into facts. Posting an id again replaces what it gave; without one, a new one is made."""

    id: Annotated[DocumentId, Field(min_length=1)] | None = None
    title: Line | None = None
    text: Annotated[str, AfterValidator(_text), Field(min_length=1, json_schema_extra={"pattern": _TEXT})]
    source: Line | None = None

    def to_domain(self) -> Document:
        """The document to be split."""
        return Document(new_id() if self.id is None else self.id, self.title, self.text, self.source)


class DocumentsRequest(Closed):
    """Documents to be split, all or none."""

    documents: Annotated[tuple[DocumentIn, ...], Field(min_length=1, max_length=MAX_FACTS)]

    @model_validator(mode="after")
    def _distinct(self) -> DocumentsRequest:
        ids = [document.id for document in self.documents if document.id is not None]
        if len(set(ids)) < len(ids):
            raise PydanticCustomError("repeats", "Two documents have the same id")
        return self


class ScopeChange(Closed):
    """What a scope shall be. policy replaces its policy as a whole, and stays as it is where it is not given.

    overridable: the policy fields that a request may change; null for as the service decides. embedder: the
    service's own is the only one; a scope whose vectors are another's is refused unless reembed is true.
    """

    policy: PolicyFields | None = None
    overridable: (
        Annotated[tuple[PolicyField, ...], Field(max_length=7, json_schema_extra={"uniqueItems": True})] | None
    ) = None
    embedder: Annotated[Line, Field(min_length=1)] | None = None
    reembed: StrictBool = False

    @model_validator(mode="after")
    def _distinct(self) -> ScopeChange:
        if self.overridable is not None and len(set(self.overridable)) < len(self.overridable):
            raise PydanticCustomError("repeats", "A policy field may be named once")
        return self


class Health(TypedDict):
    """Whether the process runs."""

    status: Literal["alive"]


class Readiness(TypedDict):
    """That questions can be answered. llms: each one's roles, model, and what its server was found to do."""

    status: Literal["ready"]
    llms: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ScopeBody:
    """A scope. policy: what it sets itself; effective_policy: what holds, with the service's defaults."""

    name: str
    policy: Mapping[str, Any]
    effective_policy: Policy
    overridable: tuple[str, ...] | None
    embedder: str
    facts: int
    documents: int
    revision: int
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, scope: Scope, effective: Policy) -> ScopeBody:
        """The scope as a caller sees it."""
        return cls(
            scope.name,
            scope.policy,
            effective,
            scope.overridable,
            scope.embedder,
            scope.facts,
            scope.documents,
            scope.revision,
            scope.created_at,
            scope.updated_at,
        )


class SourceDocument(Closed):
    """A document to make questions of; without an id it is known by its position, d1 and so on."""

    id: Annotated[DocumentId, Field(min_length=1)] | None = None
    title: Line | None = None
    text: Annotated[str, AfterValidator(line), Field(json_schema_extra={"pattern": _LINE})]
    topic: Line | None = None


class GenerateRequest(Closed):
    """What to make questions of, the documents given or those of a scope, and by how much work.

    facts_per_document: claims taken out of each. rounds, partitions: of masking and recovering them. votes: of the
    judge, on each question. seed: of all random choices.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["documents"], "properties": {"documents": {"type": "array"}, "scope": {"type": "null"}}},
                {"required": ["scope"], "properties": {"documents": {"type": "null"}, "scope": {"type": "string"}}},
            ]
        }
    )

    documents: Annotated[tuple[SourceDocument, ...], Field(min_length=1, max_length=MAX_FACTS)] | None = None
    scope: ScopeName | None = None
    facts_per_document: Annotated[Integer, Field(ge=2, le=100)] = 10
    rounds: Annotated[Integer, Field(ge=1, le=20)] = 3
    partitions: Annotated[Integer, Field(ge=2, le=20)] = 3
    in_scope_questions: Annotated[Integer, Field(ge=0, le=100)] = 5
    votes: Annotated[Integer, Field(ge=1, le=99)] = 3
    seed: Annotated[Integer, Field(ge=0, lt=2**31)] = 0

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.documents is None) == (self.scope is None):
            raise PydanticCustomError("one_source", "Give exactly one of documents and scope")
        ids = [document["id"] for document in self.spec()["documents"] or ()]
        if len(set(ids)) < len(ids):
            raise PydanticCustomError("repeats", "Two documents have the same id")
        return self

    def spec(self) -> dict[str, Any]:
        """The job's spec, in which every document has an id."""
        spec = self.model_dump(mode="json")
        for n, document in enumerate(spec["documents"] or (), 1):
            document["id"] = document["id"] or f"d{n}"
        return spec


class EnrichRequest(Closed):
    """What an LLM is to think of: questions in the spirit of the seeds, and how sure of an answer it must be.

    review: the facts are a proposal; without it they enter the scope as the job ends. seed: of all random choices.
    """

    seed_questions: Annotated[tuple[Question, ...], Field(min_length=1, max_length=1_000)]
    count: Annotated[Integer, Field(ge=1, le=MAX_FACTS)] = 100
    min_confidence: Confidence = 0.7
    review: StrictBool = True
    seed: Annotated[Integer, Field(ge=0, lt=2**31)] = 0


class AcceptRequest(Closed):
    """Which of the proposed facts shall enter the scope, by the ids of their rows; all of them for null."""

    ids: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=MAX_FACTS)] | None = None


class PageQuery(Closed):
    """Which page of a list."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class ScopesQuery(PageQuery):
    """Which page of the scopes."""

    cursor: ScopeName | None = None


class JobsQuery(PageQuery):
    """Which page of the jobs, and which of them."""

    cursor: Annotated[str, Field(pattern=r"^[0-9A-Z]{26}$")] | None = None
    status: JobStatus | None = None
    kind: JobKind | None = None


class ResultQuery(Closed):
    """In which form the rows shall come: a row a line, or, of a data set, as Parquet or in ELOQ's files, zipped.

    card: what there is to say of the data set, in Markdown.
    """

    format: Literal["jsonl", "parquet", "eloq", "card"] = "jsonl"


class FactsQuery(PageQuery):
    """Which page of the facts; q sorts them by closeness of meaning to it, in one page."""

    cursor: Position | None = None
    q: Question | None = None

    @model_validator(mode="after")
    def _one_order(self) -> FactsQuery:
        if self.cursor is not None and self.q is not None:
            raise PydanticCustomError("two_orders", "Give cursor or q, not both: what q finds is one page")
        return self
