"""POST /check, /check/batch and /answer: questions in, verdicts and answers out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Request, Response
from fastapi.sse import format_sse_event

from scopegate.api import problems
from scopegate.api.body import Body
from scopegate.api.keys import Role
from scopegate.api.parts import Allow, Given, Parts
from scopegate.api.problems import Problem
from scopegate.api.replies import dump, reply
from scopegate.api.schemas import AnswerRequest, BatchRequest, BatchResult, CheckRequest
from scopegate.api.streams import EventStream, Flow, begun, unless_gone
from scopegate.domain import Answer, Check, Decision, Delta, Forbidden, ScopegateError, Verdict

router = APIRouter(tags=["asking"], dependencies=[Depends(Allow(Role.CHECK))])
log = structlog.get_logger("scopegate.asking")

# Of one batch; more would wait for each other until their deadlines.
_AT_ONCE = 16

_CHECK = Body(CheckRequest)
_BATCH = Body(BatchRequest)
_ANSWER = Body(AnswerRequest)
_STREAM = {
    "description": "Events: delta, then one of answer, refusal and error",
    "schema": {
        "type": "object",
        "properties": {"event": {"enum": ["delta", "answer", "refusal", "error"]}, "data": {"type": "string"}},
        "required": ["event", "data"],
    },
}


@router.post(
    "/check",
    response_model=Verdict,
    openapi_extra=_CHECK.openapi_extra,
    responses=problems.documented(404, 408, 413, 415),
)
async def check(body: Annotated[CheckRequest, Depends(_CHECK)], request: Request, parts: Given) -> Response:
    """May this question be answered from the scope's knowledge, or from the passages given? A refusal is a 200."""
    asked = permitted(body.to_domain(), parts)
    verdict = await unless_gone(request, parts.services.gatekeeper.check(asked))
    judged(parts, asked, verdict)
    return reply(verdict, headers=timing([verdict]))


@router.post(
    "/check/batch",
    response_model=BatchResult,
    openapi_extra=_BATCH.openapi_extra,
    responses=problems.documented(408, 413, 415),
)
async def check_batch(body: Annotated[BatchRequest, Depends(_BATCH)], request: Request, parts: Given) -> Response:
    """Up to 256 checks, some at a time; each is answered with a verdict or a problem, in order.

    A check's deadline counts from its own turn.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def judge(item: CheckRequest | Problem) -> Verdict | Problem:
        if not isinstance(item, CheckRequest):
            return item
        try:
            asked = permitted(item.to_domain(), parts)
            async with turns:
                verdict = await parts.services.gatekeeper.check(asked)
        except ScopegateError as error:
            return problems.of_error(error)
        except Exception:
            log.exception("failed")
            return problems.failed()
        judged(parts, asked, verdict)
        return verdict

    async def judge_all() -> list[Verdict | Problem]:
        return await asyncio.gather(*map(judge, body.items))

    results = await unless_gone(request, judge_all())
    return reply(
        BatchResult(results=results), headers=timing(result for result in results if isinstance(result, Verdict))
    )


@router.post(
    "/answer",
    response_model=Answer,
    openapi_extra=_ANSWER.openapi_extra,
    responses={200: {"content": {"text/event-stream": _STREAM}}, **problems.documented(404, 408, 413, 415)},
)
async def answer(body: Annotated[AnswerRequest, Depends(_ANSWER)], request: Request, parts: Given) -> Response:
    """An answer with the evidence that it rests on, or a refusal that says why; both are a 200.

    Streamed: `delta` events once every gate has passed, then one `answer`, `refusal` or `error`.
    """
    asked = permitted(body.to_domain(), parts)
    answerer = parts.services.answerer
    if body.stream:
        first, flow = await begun(request, answerer.stream(asked))
        return EventStream(_events(first, flow, parts, asked), flow)
    answered = await unless_gone(request, answerer.answer(asked))
    judged(parts, asked, answered.verdict)
    return reply(answered, headers=timing([answered.verdict]))


async def _events(
    first: Delta | Answer | None, flow: Flow[Delta | Answer], parts: Parts, asked: Check
) -> AsyncIterator[bytes]:
    try:
        item = first
        while item is not None:
            if isinstance(item, Delta):
                yield _event("delta", item)
            else:
                judged(parts, asked, item.verdict)
                yield _event("refusal" if item.decision is Decision.REFUSAL else "answer", item)
            item = await flow.next()
    except ScopegateError as error:
        yield _event("error", problems.of_error(error))
    except Exception:
        log.exception("failed")
        yield _event("error", problems.failed())


def _event(name: str, body: Any) -> bytes:
    return format_sse_event(event=name, data_str=dump(body).decode())


def permitted(asked: Check, parts: Parts) -> Check:
    """The check itself. Raises UnknownScope, or Forbidden where it overrides what the scope keeps to itself."""
    allowed = parts.services.knowledge.scope_of(asked.scope).overridable
    if allowed is None and parts.keys.open:
        return asked
    forbidden = sorted(asked.overrides.keys() - set(allowed or ()))
    if forbidden:
        raise Forbidden(f"scope {asked.scope!r} does not let a request override {', '.join(forbidden)}")
    return asked


def timing(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """The Server-Timing header: milliseconds a gate (W3C Server Timing)."""
    spent: dict[str, float] = {}
    for verdict in verdicts:
        for result in verdict.gates:
            spent[result.gate] = spent.get(result.gate, 0.0) + result.elapsed_ms
    return {"Server-Timing": ", ".join(f"{gate};dur={ms:.2f}" for gate, ms in spent.items())}


def judged(parts: Parts, asked: Check, verdict: Verdict) -> None:
    """Counts the verdict, and logs the question where that is wanted."""
    parts.metrics.judged(verdict)
    if parts.services.settings.log_questions:
        log.info("judged", question=asked.question, decision=verdict.decision, verdict=verdict.id)
