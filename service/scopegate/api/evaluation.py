"""POST /evaluate and POST /scopes/{scope}/calibrate: jobs that measure."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from scopegate.api import problems
from scopegate.api.body import Body
from scopegate.api.evaluation_schemas import CalibrateRequest, EvaluateRequest
from scopegate.api.jobs import IdempotencyKey, accepted
from scopegate.api.keys import Role
from scopegate.api.parts import Allow, Given, Parts
from scopegate.api.scopes import InPath
from scopegate.domain import Conflict, Invalid, Job, JobKind
from scopegate.generation.data_set import DataSet

router = APIRouter(tags=["evaluation"], dependencies=[Depends(Allow(Role.WRITE))])

_CALIBRATE, _EVALUATE = Body(CalibrateRequest), Body(EvaluateRequest)
_ON_QUESTIONS = {"detection", "response", "retrieval"}
_admin = Allow(Role.ADMIN)


@router.post(
    "/evaluate",
    status_code=202,
    response_model=Job,
    openapi_extra=_EVALUATE.openapi_extra,
    responses=problems.documented(404, 408, 409, 413, 415, 507),
)
async def evaluate(
    body: Annotated[EvaluateRequest, Depends(_EVALUATE)], parts: Given, idempotency_key: IdempotencyKey = None
) -> Response:
    """A job that measures detection, responses, retrieval, answers to questions with choices, or agreement."""
    if isinstance(body.dataset, list):
        spec = body.spec(body.dataset)
    else:
        rows, whole = await _made(parts, body.dataset, body.task)
        spec = body.spec(rows) | {"whole": whole}
    await parts.services.works[JobKind.EVALUATE].items(spec)
    return await accepted(parts, JobKind.EVALUATE, spec, idempotency_key)


@router.post(
    "/scopes/{scope}/calibrate",
    status_code=202,
    response_model=Job,
    openapi_extra=_CALIBRATE.openapi_extra,
    responses=problems.documented(404, 408, 409, 413, 415, 507),
)
async def calibrate(
    scope: InPath,
    body: Annotated[CalibrateRequest, Depends(_CALIBRATE)],
    request: Request,
    parts: Given,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """A job that finds thresholds from labelled questions, with their curves and what can be promised of them."""
    if body.apply:
        await _admin(request)
    spec = {"scope": scope, **body.model_dump(mode="json")}
    await parts.services.works[JobKind.CALIBRATE].items(spec)
    return await accepted(parts, JobKind.CALIBRATE, spec, idempotency_key)


async def _made(parts: Parts, job_id: str, task: str) -> tuple[list[dict[str, Any]], bool]:
    """The questions that a job has generated, each with its document as the generator read it, and whether these are
    all: not those of a job that failed or was cancelled. Raises Conflict while it goes on."""
    job = await parts.services.jobs.job(job_id)
    if job.kind is not JobKind.GENERATE or task not in _ON_QUESTIONS:
        raise Invalid(f"the task {task!r} takes rows; a generation job's are questions for {', '.join(_ON_QUESTIONS)}")
    if job.finished_at is None:
        raise Conflict(f"the job {job_id!r} has not ended yet")
    made = await DataSet.of(parts.services.jobs, job)
    texts = {each["id"]: "\n\n".join(filter(None, (each["title"], each["text"]))) for each in made.documents}
    rows = [
        {
            **{name: row[name] for name in ("id", "question", "in_scope", "document_id", "topic")},
            "document": texts[row["document_id"]],
        }
        for row in made.rows
    ]
    return rows, made.whole
