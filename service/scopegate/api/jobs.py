"""POST /generate-dataset, and /jobs: work in the background, followed, fetched and cancelled."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from pydantic import AfterValidator

from scopegate.api import problems
from scopegate.api.body import NDJSON, Body
from scopegate.api.keys import Role
from scopegate.api.parts import Allow, Given, Parts
from scopegate.api.replies import dump, reply
from scopegate.api.schemas import GenerateRequest, JobsQuery, ResultQuery
from scopegate.api.streams import EventStream, Flow, begun
from scopegate.domain import Invalid, Job, JobKind, Page, ScopegateError, UnknownJob
from scopegate.generation.data_set import DataSet
from scopegate.generation.output import JSONL, zipped
from scopegate.jobs.store import Seen

router = APIRouter(tags=["jobs"], dependencies=[Depends(Allow(Role.WRITE))])
log = structlog.get_logger("scopegate.jobs")

_JOB_ID = r"^[0-9A-Z]{26}$"
_EVENT_ID = re.compile("[0-9]{1,19}")


def _id(job: str) -> str:
    """Raises UnknownJob for what is no job's id, and so none's."""
    if re.fullmatch(_JOB_ID, job) is None:
        raise UnknownJob(f"there is no job {job!r}")
    return job


InPath = Annotated[str, Path(json_schema_extra={"pattern": _JOB_ID}), AfterValidator(_id)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[!-~]+$",
        description="The same key with the same request is the same job, with another request a 409.",
    ),
]

_GENERATE = Body(GenerateRequest)
_KEEP_ALIVE_S = 15
_PARQUET = "application/vnd.apache.parquet"
_ZIP = "application/zip"
_MARKDOWN = "text/markdown"
_FILE = {"type": "string", "format": "binary"}
_TEXT = {"schema": {"type": "string"}, "example": "# Questions in and out of scope\n"}
_EVENTS = {"schema": {"type": "string"}, "example": 'id: 7\nevent: job\ndata: {"id": "01KB3YQ4Z8M2N5P7R9T1V3X5Z7"}\n\n'}
_ROWS = {"schema": {"type": "string"}, "example": '{"id": "news_1_1_1", "question": "Who built the pier?"}\n'}


async def accepted(parts: Parts, kind: JobKind, spec: Mapping[str, Any], idempotency_key: str | None) -> Response:
    """A job as a 202 with its Location. spec: JSON."""
    job, _ = await parts.services.jobs.submit(kind, spec, idempotency_key)
    return reply(job, 202, {"Location": f"/jobs/{job.id}"})


@router.post(
    "/generate-dataset",
    status_code=202,
    response_model=Job,
    openapi_extra=_GENERATE.openapi_extra,
    responses=problems.documented(404, 408, 409, 413, 415, 507),
)
async def generate_dataset(
    body: Annotated[GenerateRequest, Depends(_GENERATE)], parts: Given, idempotency_key: IdempotencyKey = None
) -> Response:
    """A job that makes questions of documents: some that they answer, and some that only seem so."""
    if body.scope is not None:
        scope = await parts.services.knowledge.scope(body.scope)
        if not scope.documents:
            raise Invalid(f"the scope {body.scope!r} has no documents to make questions of")
    return await accepted(parts, JobKind.GENERATE, body.spec(), idempotency_key)


@router.get("/jobs", response_model=Page[Job], responses=problems.documented())
async def list_jobs(page: Annotated[JobsQuery, Query()], parts: Given) -> Response:
    """The jobs, the latest first."""
    return reply(await parts.services.jobs.jobs(page.limit, page.cursor, page.status, page.kind))


@router.get("/jobs/{job}", response_model=Job, responses=problems.documented(404))
async def get_job(job: InPath, parts: Given) -> Response:
    """A job: where it stands, and its summary once it has ended."""
    return reply(await parts.services.jobs.job(job))


@router.delete("/jobs/{job}", response_model=Job, responses=problems.documented(404, 507))
async def cancel_job(job: InPath, parts: Given) -> Response:
    """Cancels a job; what is finished stays. One that has ended stays as it is."""
    return reply(await parts.services.jobs.cancel(job))


@router.get(
    "/jobs/{job}/events",
    response_class=Response,
    responses={
        200: {"content": {"text/event-stream": _EVENTS}},
        204: {"description": "The job has ended, and Last-Event-ID was its last event"},
        **problems.documented(404),
    },
)
async def job_events(
    job: InPath,
    request: Request,
    parts: Given,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> Response:
    """The job after each change, as `job` events, until it has ended; Last-Event-ID leaves out what was heard."""
    last = int(last_event_id) if last_event_id and _EVENT_ID.fullmatch(last_event_id) else 0
    first, flow = await begun(request, parts.services.jobs.follow(job))
    if first is not None and first.job.finished_at is not None and first.version <= last:
        await flow.close()
        return Response(status_code=204)  # at which a browser stops connecting again
    return EventStream(_events(first, flow, last), flow)


@router.get(
    "/jobs/{job}/result",
    response_class=Response,
    responses={
        200: {"content": {NDJSON: _ROWS, _PARQUET: {"schema": _FILE}, _ZIP: {"schema": _FILE}, _MARKDOWN: _TEXT}},
        **problems.documented(404),
    },
)
async def job_result(job: InPath, query: Annotated[ResultQuery, Query()], parts: Given) -> Response:
    """The rows that are finished so far, or all of them once the job has ended."""
    known = await parts.services.jobs.job(job)
    headers = {"X-Job-Status": known.status}
    if query.format == "jsonl":
        return StreamingResponse(_lines(parts, job), headers=headers | _named(f"{job}.jsonl"), media_type=NDJSON)
    if known.kind is not JobKind.GENERATE:
        raise Invalid(f"what a job of the kind {str(known.kind)!r} gives comes as jsonl alone")
    async with parts.data_sets:
        data_set = await DataSet.of(parts.services.jobs, known, with_documents=query.format == "eloq")
        if query.format == "card":
            return Response(data_set.card(JSONL), headers=headers, media_type=_MARKDOWN)
        if query.format == "parquet":
            file = await asyncio.to_thread(data_set.parquet)
            return Response(file, headers=headers | _named(f"{job}.parquet"), media_type=_PARQUET)
        archive = await asyncio.to_thread(lambda: zipped(data_set.eloq()))
        return Response(archive, headers=headers | _named(f"{job}.zip"), media_type=_ZIP)


def _named(file: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{file}"'}


async def _lines(parts: Parts, job: str) -> AsyncIterator[bytes]:
    async for part in parts.services.jobs.result(job):
        yield b"".join(dump(row) + b"\n" for done in part for row in done.rows)


async def _events(first: Seen | None, flow: Flow[Seen], last: int) -> AsyncIterator[bytes]:
    """What comes after the event `last`, with a comment wherever there is nothing to tell for long."""
    try:
        seen = first
        while seen is not None:
            if seen.version > last:
                yield format_sse_event(event="job", id=str(seen.version), data_str=dump(seen.job).decode())
            coming = asyncio.ensure_future(flow.next())
            try:
                while not (await asyncio.wait((coming,), timeout=_KEEP_ALIVE_S))[0]:
                    yield KEEPALIVE_COMMENT
                seen = coming.result()
            finally:
                coming.cancel()
    except ScopegateError as error:
        yield format_sse_event(event="error", data_str=dump(problems.of_error(error)).decode())
    except Exception:
        log.exception("failed")
        yield format_sse_event(event="error", data_str=dump(problems.failed()).decode())
