"""/scopes/{scope}/facts, /documents and /export: what a scope knows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from fastapi.responses import StreamingResponse

from scopegate.api import problems
from scopegate.api.body import NDJSON, Body, FactsBody
from scopegate.api.keys import Role
from scopegate.api.parts import Allow, Given
from scopegate.api.replies import dump, reply
from scopegate.api.schemas import DocumentsRequest, FactChange, FactId, FactsQuery, ScopeName
from scopegate.domain import Added, Fact, Invalid, NewFact, Page, Split

router = APIRouter(tags=["knowledge"], dependencies=[Depends(Allow(Role.WRITE))])
ScopeInPath = Annotated[ScopeName, Path()]
IdInPath = Annotated[FactId, Path()]

_FACTS = FactsBody()
_CHANGE = Body(FactChange)
_DOCUMENTS = Body(DocumentsRequest)
_CHUNK = 64 * 1024


@router.post(
    "/scopes/{scope}/facts",
    status_code=201,
    response_model=Added,
    openapi_extra=_FACTS.openapi_extra,
    responses=problems.documented(408, 409, 413, 415, 507),
)
async def add_facts(scope: ScopeInPath, facts: Annotated[list[NewFact], Depends(_FACTS)], parts: Given) -> Response:
    """Adds facts, all or none, and creates the scope where it is new; durable before it answers.

    A known id, or a known text, gets another provenance.
    """
    return reply(await parts.services.knowledge.add(scope, facts), 201)


@router.get("/scopes/{scope}/facts", response_model=Page[Fact], responses=problems.documented(404))
async def list_facts(scope: ScopeInPath, page: Annotated[FactsQuery, Query()], parts: Given) -> Response:
    """The facts, oldest first; with q, those closest in meaning to it first."""
    return reply(await parts.services.knowledge.facts(scope, page.limit, page.cursor, page.q))


@router.get("/scopes/{scope}/facts/{id}", response_model=Fact, responses=problems.documented(404))
async def get_fact(scope: ScopeInPath, id: IdInPath, parts: Given) -> Response:  # noqa: A002
    """A fact with its provenances."""
    return reply(await parts.services.knowledge.fact(scope, id))


@router.patch(
    "/scopes/{scope}/facts/{id}",
    response_model=Fact,
    openapi_extra=_CHANGE.openapi_extra,
    responses=problems.documented(404, 408, 409, 413, 415, 507),
)
async def correct_fact(
    scope: ScopeInPath,
    id: IdInPath,  # noqa: A002
    change: Annotated[FactChange, Depends(_CHANGE)],
    parts: Given,
) -> Response:
    """Corrects a fact; the next check sees it."""
    if not change:
        raise Invalid("give at least one of text, confidence and metadata")
    corrected = await parts.services.knowledge.correct(
        scope,
        id,
        text=change.get("text"),
        confidence=change.get("confidence"),
        metadata=change.get("metadata"),
    )
    return reply(corrected)


@router.delete("/scopes/{scope}/facts/{id}", status_code=204, responses=problems.documented(404, 507))
async def remove_fact(scope: ScopeInPath, id: IdInPath, parts: Given) -> Response:  # noqa: A002
    """Removes a fact with all its provenances; the next check does not see it."""
    await parts.services.knowledge.remove(scope, id)
    return Response(status_code=204)


@router.post(
    "/scopes/{scope}/documents",
    status_code=201,
    response_model=Split,
    openapi_extra=_DOCUMENTS.openapi_extra,
    responses=problems.documented(408, 409, 413, 415, 507),
)
async def add_documents(
    scope: ScopeInPath, request: Annotated[DocumentsRequest, Depends(_DOCUMENTS)], parts: Given
) -> Response:
    """Splits documents into sentences, each a fact; an id posted again replaces what it gave before."""
    documents = [document.to_domain() for document in request.documents]
    return reply(await parts.services.knowledge.add_documents(scope, documents), 201)


@router.get(
    "/scopes/{scope}/export",
    response_class=Response,
    responses={
        200: {
            "description": "A fact a line, as POST facts takes it back",
            "content": {NDJSON: {"schema": {"$ref": "#/components/schemas/Fact"}}},
        },
        **problems.documented(404),
    },
)
async def export(scope: ScopeInPath, parts: Given) -> Response:
    """Every fact with its provenances, a line each."""
    await parts.services.knowledge.scope(scope)
    return StreamingResponse(_lines(parts.services.knowledge.export(scope)), media_type=NDJSON)


async def _lines(facts: AsyncIterator[Fact]) -> AsyncIterator[bytes]:
    """Facts as NDJSON, in pieces of about _CHUNK bytes."""
    piece = bytearray()
    async with aclosing(facts):  # type: ignore[type-var]
        async for fact in facts:
            piece += dump(fact)
            piece += b"\n"
            if len(piece) >= _CHUNK:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)
