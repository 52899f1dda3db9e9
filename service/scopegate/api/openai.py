"""POST /v1/chat/completions and GET /v1/models: gated answers for any client of OpenAI's protocol."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Request, Response

from scopegate import __version__
from scopegate.answering.draft import Spent
from scopegate.api import problems
from scopegate.api.asking import judged, permitted, timing
from scopegate.api.body import Body
from scopegate.api.keys import Role
from scopegate.api.openai_schemas import (
    MODEL_PREFIX,
    AssistantMessage,
    ChatCompletion,
    ChatRequest,
    Choice,
    FinishReason,
    ModelCard,
    ModelList,
    TokenUsage,
)
from scopegate.api.parts import Allow, Given, Parts
from scopegate.api.replies import dump, reply
from scopegate.api.streams import EventStream, Flow, begun, unless_gone
from scopegate.domain import Answer, Check, Delta, ScopegateError
from scopegate.ids import new_id

Item = Delta | Spent | Answer

router = APIRouter(prefix="/v1", tags=["openai"], dependencies=[Depends(Allow(Role.CHECK))])
log = structlog.get_logger("scopegate.openai")

_FINGERPRINT = f"scopegate-{__version__}"
_NOTHING = Spent(None, cut=False)
_DONE = b"data: [DONE]\n\n"

_CHAT = Body(ChatRequest)
_STREAM = {
    "description": "Chunks of the answer, then [DONE]",
    "schema": {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]},
}


@router.post(
    "/chat/completions",
    response_model=ChatCompletion,
    openapi_extra=_CHAT.openapi_extra,
    responses={200: {"content": {"text/event-stream": _STREAM}}, **problems.documented_openai(404, 408, 409, 413, 415)},
)
async def chat_completions(body: Annotated[ChatRequest, Depends(_CHAT)], request: Request, parts: Given) -> Response:
    """An answer with evidence, or a refusal, as an assistant's message; streamed where asked for."""
    asked = permitted(body.to_domain(), parts)
    items = parts.services.answerer.chat(asked, body.options(), whole=not body.stream)
    if not body.stream:
        answered, spent = await unless_gone(request, _whole(items))
        judged(parts, asked, answered.verdict)
        return reply(_completion(answered, spent), headers=timing([answered.verdict]))
    first, flow = await begun(request, items)
    counted = body.stream_options is not None and bool(body.stream_options.include_usage)
    return EventStream(_events(first, flow, _Chunks(asked.scope, counted=counted), parts, asked), flow)


@router.get("/models", response_model=ModelList, responses=problems.documented_openai())
async def models(parts: Given) -> Response:
    """Every scope that can be asked here, as a model."""
    knowledge = parts.services.knowledge
    scopes = (knowledge.scope_of(size.scope) for size in knowledge.sizes())
    cards = (ModelCard(MODEL_PREFIX + scope.name, int(scope.created_at.timestamp())) for scope in scopes)
    return reply(ModelList(tuple(sorted(cards, key=lambda card: card.id))))


async def _whole(items: AsyncGenerator[Item, None]) -> tuple[Answer, Spent]:
    spent = _NOTHING
    async with contextlib.aclosing(items):
        async for item in items:
            if isinstance(item, Spent):
                spent = item
            elif isinstance(item, Answer):
                return item, spent
    raise AssertionError("an answer comes last, always")


def _completion(answered: Answer, spent: Spent) -> ChatCompletion:
    message = AssistantMessage(answered.answer or answered.refusal or "", answered.refusal)
    model = MODEL_PREFIX + answered.verdict.scope
    choice = Choice(message, _finish(spent))
    return ChatCompletion(_id(), int(time.time()), model, _FINGERPRINT, (choice,), _usage(spent), answered)


def _finish(spent: Spent) -> FinishReason:
    return "length" if spent.cut else "stop"


def _usage(spent: Spent) -> TokenUsage | None:
    used = spent.usage
    return None if used is None else TokenUsage(used.prompt, used.completion, used.prompt + used.completion)


class _Chunks:
    """The chunks of one stream, as events; they all begin alike."""

    def __init__(self, scope: str, *, counted: bool) -> None:
        """counted: the client wants to know the usage, so that every chunk has the field."""
        self._head: dict[str, Any] = {
            "id": _id(),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": MODEL_PREFIX + scope,
            "system_fingerprint": _FINGERPRINT,
        }
        if counted:
            self._head["usage"] = None

    def delta(self, delta: Mapping[str, str | None], finish_reason: str | None = None, **more: Any) -> bytes:
        """A piece of the message."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event({**self._head, "choices": [choice], **more})

    def usage(self, usage: TokenUsage | None) -> bytes:
        """What the LLM took, as the protocol's extra chunk; nothing where that is not known, or not wanted."""
        if usage is None or "usage" not in self._head:
            return b""
        return _event({**self._head, "choices": [], "usage": usage})


async def _events(
    item: Item | None, rest: Flow[Item], chunks: _Chunks, parts: Parts, asked: Check
) -> AsyncIterator[bytes]:
    """The whole stream; an error on the way is its last event, since its status is sent already."""
    start = chunks.delta({"role": "assistant", "content": "", "refusal": None})
    spent = _NOTHING
    try:
        while not isinstance(item, Answer):
            match item:
                case Delta(text):
                    yield start + chunks.delta({"content": text})
                    start = b""
                case Spent():
                    spent = item
                case None:
                    raise AssertionError("an answer comes last, always")
            item = await rest.next()
    except ScopegateError as error:
        yield _event(problems.for_openai(problems.of_error(error))[1])
        return
    except Exception:
        log.exception("failed")
        yield _event(problems.for_openai(problems.failed())[1])
        return
    judged(parts, asked, item.verdict)
    if item.refusal is not None:
        start += chunks.delta({"content": item.refusal, "refusal": item.refusal})
    end = chunks.delta({}, _finish(spent), scopegate=item)
    yield start + end + chunks.usage(_usage(spent)) + _DONE


def _event(body: Any) -> bytes:
    return b"data: " + dump(body) + b"\n\n"


def _id() -> str:
    return f"chatcmpl-{new_id()}"
