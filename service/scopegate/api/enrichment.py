"""POST /scopes/{scope}/enrich and /jobs/{job}/accept: facts proposed by an LLM, and taken in once they are seen."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from scopegate.api import problems
from scopegate.api.body import Body
from scopegate.api.jobs import IdempotencyKey, InPath, accepted
from scopegate.api.keys import Role
from scopegate.api.parts import Allow, Given
from scopegate.api.replies import reply
from scopegate.api.schemas import AcceptRequest, EnrichRequest, ScopeName
from scopegate.domain import Conflict, Job, JobKind
from scopegate.enrichment.proposal import Accepted, accept

router = APIRouter(tags=["jobs"], dependencies=[Depends(Allow(Role.WRITE))])

_ENRICH = Body(EnrichRequest)
_ACCEPT = Body(AcceptRequest)


@router.post(
    "/scopes/{scope}/enrich",
    status_code=202,
    response_model=Job,
    openapi_extra=_ENRICH.openapi_extra,
    responses=problems.documented(404, 408, 409, 413, 415, 507),
)
async def enrich(
    scope: Annotated[ScopeName, Path()],
    body: Annotated[EnrichRequest, Depends(_ENRICH)],
    parts: Given,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """A job that has an LLM think of facts for a scope; they are its rows, to be accepted or not."""
    await parts.services.knowledge.scope(scope)
    return await accepted(parts, JobKind.ENRICH, {"scope": scope} | body.model_dump(mode="json"), idempotency_key)


@router.post(
    "/jobs/{job}/accept",
    response_model=Accepted,
    openapi_extra=_ACCEPT.openapi_extra,
    responses=problems.documented(404, 408, 409, 413, 415, 507),
)
async def accept_facts(job: InPath, body: Annotated[AcceptRequest, Depends(_ACCEPT)], parts: Given) -> Response:
    """Takes proposed facts into the scope, all or some; may be called again, for others or the same."""
    services = parts.services
    known = await services.jobs.job(job)
    if known.kind is not JobKind.ENRICH:
        raise Conflict(f"a job of the kind {str(known.kind)!r} proposes no facts")
    if known.finished_at is None:
        raise Conflict("the job has not ended yet, so its proposal is not whole; cancel it to accept what there is")
    _, spec = await services.jobs.spec(job)
    await services.knowledge.scope(spec["scope"])  # which may be gone, and is not made anew by this
    rows = [row async for part in services.jobs.result(job) for done in part for row in done.rows]
    return reply(await accept(services.knowledge, services.embedder, spec["scope"], rows, body.ids))
