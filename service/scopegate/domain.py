"""The project's words, as frozen types. Everything else speaks in these.

The vocabulary follows *Learn to Refuse* (facts with confidence, hard refusal) and *ELOQ* (confusion); see
docs/architecture.md for the table of words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Facts that one call may add, given or split from documents.
MAX_FACTS = 10_000


class Origin(StrEnum):
    """Where a fact came from: a person, a document that was split, or knowledge enrichment."""

    MANUAL = "manual"
    DOCUMENT = "document"
    ENRICHED = "enriched"


class GateName(StrEnum):
    """The gates, cheapest first; the order is the order in which they run. Without an LLM there is no soft one."""

    HARD = "hard"
    PROBE = "probe"
    SOFT = "soft"


class GateStatus(StrEnum):
    """How a gate's turn ended: it judged, was not asked, broke, or ran past the deadline."""

    OK = "ok"
    SKIPPED = "skipped"
    ERROR = "error"
    DEADLINE = "deadline"


class Decision(StrEnum):
    """What the caller is told. A check ends ANSWERABLE or REFUSAL, an answer ANSWER or REFUSAL."""

    ANSWERABLE = "ANSWERABLE"
    ANSWER = "ANSWER"
    REFUSAL = "REFUSAL"


class Mode(StrEnum):
    """ENFORCE refuses; OBSERVE only says that it would have."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


class OnError(StrEnum):
    """What a gate that broke or ran out of time counts as: a refusal, a pass, or a failed request."""

    REFUSE = "refuse"
    ANSWER = "answer"
    FAIL = "fail"


class ConfusionType(StrEnum):
    """Why a question cannot be answered (RAG-ConfusionQA, section 3)."""

    NOT_MENTIONED = "not_mentioned"
    FALSE_PREMISE = "false_premise"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True, slots=True)
class Provenance:
    """One reason to hold a fact. confidence is in (0, 1]."""

    origin: Origin
    source: str | None
    document_id: str | None
    confidence: float


@dataclass(frozen=True, slots=True)
class Fact:
    """A declarative sentence in a scope; its confidence C is the highest of its provenances'."""

    id: str
    text: str
    confidence: float
    provenances: tuple[Provenance, ...]
    metadata: Mapping[str, Any]
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class NewFact:
    """A fact as a caller hands it over; provenances is never empty. Ids and times are made where they are None."""

    text: str
    provenances: tuple[Provenance, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A text to be split into sentences, each of which becomes a fact with this provenance."""

    id: str
    title: str | None
    text: str
    source: str | None


@dataclass(frozen=True, slots=True)
class Policy:
    """How questions to a scope are judged.

    alpha: the hard gate passes while min S/C is below it, above 0. k: how many facts are evidence, 1 to 100. gates:
    those to run, at least one. probe_threshold: the probe passes at or above it, 0 to 1. votes: the soft gate's m.
    """

    alpha: float
    probe_threshold: float
    k: int = 4
    gates: tuple[GateName, ...] = (GateName.HARD, GateName.PROBE)
    votes: int = 1
    mode: Mode = Mode.ENFORCE
    on_error: OnError = OnError.REFUSE


@dataclass(frozen=True, slots=True)
class Scope:
    """A named body of knowledge and the policy for answering from it.

    overridable: the policy fields that a request may change, None for "as the service decides" (all while it is open,
    none once it has keys). revision grows by one with every write; incarnation tells a scope from an earlier one of
    the same name.
    """

    name: str
    incarnation: str
    revision: int
    embedder: str
    policy: Mapping[str, Any]
    overridable: tuple[str, ...] | None
    facts: int
    documents: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that the caller brought to be judged instead of the scope's facts."""

    id: str
    text: str
    source: str | None = None
    confidence: float = 1.0


class JobKind(StrEnum):
    """What a job does."""

    GENERATE = "generate"
    ENRICH = "enrich"
    CALIBRATE = "calibrate"
    EVALUATE = "evaluate"


class JobStatus(StrEnum):
    """Where a job stands; the last three are for ever."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is. total: None until it has started. stage: what it is at. remaining_s: an estimate, or None."""

    done: int
    total: int | None
    stage: str | None
    remaining_s: float | None


@dataclass(frozen=True, slots=True)
class Job:
    """Work in the background. error: why it failed, in a sentence. summary: what came of it, once it has ended."""

    id: str
    kind: JobKind
    status: JobStatus
    progress: JobProgress
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    summary: Mapping[str, Any] | None


class Speaker(StrEnum):
    """Whose turn it was in a conversation, or is in a prompt."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation, or of a prompt."""

    role: Speaker
    content: str


@dataclass(frozen=True, slots=True)
class Check:
    """A question to be judged, as parsed once at the edge; nothing behind it validates again.

    history: the turns before the question, oldest first, where it came as a conversation. passages: judged instead of
    the scope's facts, where given. overrides: policy fields of this request, already of their own types. deadline_ms:
    for the gates, above 0; None for none.
    """

    question: str
    scope: str = "default"
    history: tuple[Turn, ...] = ()
    passages: tuple[Passage, ...] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    explain: bool = False
    deadline_ms: float | None = None
    min_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list; next_cursor is None on the last."""

    items: Sequence[T]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """A fact, or a passage's sentence, as a question found it.

    distance S: squared L2 between unit vectors, 0 to 4, lower is closer. ratio: S / C.
    """

    id: str
    text: str
    confidence: float
    distance: float
    ratio: float
    source: str | None


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of the question; start and end count Unicode code points, end exclusive."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Confusion:
    """Why the question cannot be answered, and the parts of it that stand in the way.

    explanation: the LLM's one sentence on it, the correction where a premise is false; None where no LLM said it.
    """

    type: ConfusionType
    spans: tuple[Span, ...]
    explanation: str | None = None


@dataclass(frozen=True, slots=True)
class GateResult:
    """What one gate saw.

    passed: None where it was skipped; for an error or a deadline, what the policy's on_error made of it.
    score: min S/C for hard (None where nothing is known), P(in scope) for the probe, the share of votes for soft.
    """

    gate: GateName
    passed: bool | None
    score: float | None
    threshold: float
    status: GateStatus
    elapsed_ms: float
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """I_final, the AND of the enabled gates (Learn to Refuse, section 3.3), with what each gate saw."""

    id: str
    decision: Decision
    would_refuse: bool
    refused_by: GateName | None
    reason: str
    confusion: Confusion | None
    gates: tuple[GateResult, ...]
    evidence: tuple[Evidence, ...]
    scope: str
    revision: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """(E, R, A): evidence, reasoning, answer. Or a refusal: then answer is None and evidence is empty."""

    id: str
    decision: Decision
    answer: str | None
    reason: str
    refusal: str | None
    evidence: tuple[Evidence, ...]
    verdict: Verdict
    model: str


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer's text, as it comes; all of them together are the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Added:
    """What adding facts did: ids holds one id for each fact given, in order, whether new or known."""

    added: int
    duplicates: int
    ids: Sequence[str]
    revision: int


@dataclass(frozen=True, slots=True)
class Split:
    """What adding documents did.

    sentences: how many facts the documents give now; ids: theirs, in order. added: how many of those are new to the
    scope. removed: how many facts went because these documents had been their last provenance.
    """

    documents: int
    sentences: int
    added: int
    removed: int
    ids: Sequence[str]
    revision: int


@dataclass(frozen=True, slots=True)
class ScopeSize:
    """How large a scope is here and now, for metrics."""

    scope: str
    facts: int
    revision: int


class ScopegateError(Exception):
    """Something that a caller can be told in one sentence."""


class UnknownScope(ScopegateError):
    """There is no such scope."""


class UnknownFact(ScopegateError):
    """There is no such fact in the scope."""


class UnknownJob(ScopegateError):
    """There is no such job."""


class Conflict(ScopegateError):
    """What was asked contradicts what is stored."""


class Invalid(ScopegateError):
    """What was asked makes no sense for this scope or this service."""


class Forbidden(ScopegateError):
    """The scope's policy does not let this request do that."""


class Overloaded(ScopegateError):
    """There is more work waiting than the service accepts; try again later."""


class Unavailable(ScopegateError):
    """A part that is needed is not there: the store does not answer, a gate failed with on_error 'fail', ..."""


class StorageFull(Unavailable):
    """The store has no room left."""
