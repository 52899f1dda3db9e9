"""What OpenAI's clients send and get. Fields of the protocol that are not here are ignored, as servers of it do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from scopegate.api.schemas import MAX_TEXT, MAX_TURNS, Integer, Number, Terms, line, question_of
from scopegate.domain import Answer, Check, Speaker, Turn

MODEL_PREFIX = "scopegate/"

FinishReason = Literal["stop", "length"]
Name = Annotated[str, Field(max_length=128)]
Penalty = Annotated[Number, Field(ge=-2, le=2)]
Tokens = Annotated[Integer, Field(ge=1, lt=2**31)]

# Fields that a client's request hands on to the LLM.
_FORWARDED = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "user")


class Open(BaseModel):
    """A shape that passes over fields it does not know."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ContentPart(Open):
    """A part of a turn; those that are not text are passed over."""

    type: str
    text: str | None = None


class ChatMessage(Open):
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | tuple[ContentPart, ...] | None = None

    @property
    def text(self) -> str:
        """What it says, its parts a line each."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(part.text for part in self.content if part.type == "text" and part.text is not None)


class StreamOptions(Open):
    """How a stream is to be sent."""

    include_usage: StrictBool | None = None


def _with_question(messages: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    last = _last_user_turn(messages)
    question_of(messages[last].text)
    for turn in _spoken(messages[:last]):
        if len(turn.content) > MAX_TEXT:
            raise PydanticCustomError("too_long", f"A turn may have at most {MAX_TEXT} characters")
        line(turn.content)
    return messages


def _last_user_turn(messages: Sequence[ChatMessage]) -> int:
    for index in reversed(range(len(messages))):
        if messages[index].role == "user":
            return index
    raise PydanticCustomError("no_user_turn", "There is no user turn, which would be the question")


def _spoken(messages: Sequence[ChatMessage]) -> tuple[Turn, ...]:
    """What was said by one side to the other, without the client's instructions and its tools' results."""
    return tuple(
        Turn(Speaker(message.role), message.text)
        for message in messages
        if message.role in {Speaker.USER, Speaker.ASSISTANT} and message.text.strip()
    )


_ASKED: JsonDict = {"contains": {"properties": {"role": {"const": "user"}}, "required": ["role", "content"]}}
_OF_A_SCOPE: JsonDict = {"anyOf": [{"required": ["model"]}, {"required": ["scope"]}]}


class ChatRequest(Open):
    """A conversation whose last user turn is the question. scope, or else model (scopegate/SCOPE), says who is asked.

    scopegate: how to judge the question. Sampling fields are handed on to the LLM; others are ignored.
    """

    model_config = ConfigDict(json_schema_extra=_OF_A_SCOPE)

    model: Name | None = None
    messages: Annotated[
        tuple[ChatMessage, ...],
        Field(min_length=1, max_length=MAX_TURNS, json_schema_extra=_ASKED),
        AfterValidator(_with_question),
    ]
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    user: Annotated[str, Field(max_length=1024)] | None = None
    scope: Name | None = None
    scopegate: Terms | None = None

    @model_validator(mode="after")
    def _of_a_scope(self) -> ChatRequest:
        if self.model is None and self.scope is None:
            raise PydanticCustomError("no_scope", f"Give model, as {MODEL_PREFIX}SCOPE, or scope")
        return self

    def to_domain(self) -> Check:
        """The check asked for."""
        scope = self.scope if self.scope is not None else (self.model or "").removeprefix(MODEL_PREFIX)
        last = _last_user_turn(self.messages)
        return (self.scopegate or Terms()).check(self.messages[last].text, scope, _spoken(self.messages[:last]))

    def options(self) -> dict[str, Any]:
        """The fields that are handed on to the LLM."""
        given = {name: value for name in _FORWARDED if (value := getattr(self, name)) is not None}
        most = self.max_completion_tokens or self.max_tokens
        return given if most is None else given | {"max_tokens": most}


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What is said: an answer, or a refusal, which then stands in both fields."""

    content: str
    refusal: str | None
    role: Literal["assistant"] = "assistant"


@dataclass(frozen=True, slots=True)
class Choice:
    """The one choice; it ends with "length" where max_tokens cut it."""

    message: AssistantMessage
    finish_reason: FinishReason
    index: int = 0
    logprobs: None = None


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens that the LLM took."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """An answer or a refusal, as OpenAI's clients read it. scopegate: the same with evidence and verdict."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[Choice]
    usage: TokenUsage | None
    scopegate: Answer
    object: Literal["chat.completion"] = "chat.completion"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A scope, as OpenAI's clients know models."""

    id: str
    created: int
    object: Literal["model"] = "model"
    owned_by: Literal["scopegate"] = "scopegate"


@dataclass(frozen=True, slots=True)
class ModelList:
    """Every scope, by name."""

    data: tuple[ModelCard, ...]
    object: Literal["list"] = "list"
