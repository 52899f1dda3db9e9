"""GET /scopes, and GET, PUT, DELETE /scopes/{scope}."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Response

from scopegate.api import problems
from scopegate.api.body import Body
from scopegate.api.keys import Role
from scopegate.api.parts import Allow, Given
from scopegate.api.replies import reply
from scopegate.api.schemas import ScopeBody, ScopeChange, ScopeName, ScopesQuery
from scopegate.domain import Page, Scope
from scopegate.services import Services

router = APIRouter(tags=["scopes"])
InPath = Annotated[ScopeName, Path()]

_CHANGE = Body(ScopeChange)


@router.get(
    "/scopes",
    response_model=Page[ScopeBody],
    dependencies=[Depends(Allow(Role.WRITE))],
    responses=problems.documented(),
)
async def list_scopes(page: Annotated[ScopesQuery, Query()], parts: Given) -> Response:
    """The scopes, by name."""
    found = await parts.services.knowledge.scopes(page.limit, page.cursor)
    return reply(Page([_body(parts.services, scope) for scope in found.items], found.next_cursor))


@router.get(
    "/scopes/{scope}",
    response_model=ScopeBody,
    dependencies=[Depends(Allow(Role.WRITE))],
    responses=problems.documented(404),
)
async def get_scope(scope: InPath, parts: Given) -> Response:
    """A scope: its policy, its counts, its revision."""
    return reply(_body(parts.services, await parts.services.knowledge.scope(scope)))


@router.put(
    "/scopes/{scope}",
    response_model=ScopeBody,
    dependencies=[Depends(Allow(Role.ADMIN))],
    openapi_extra=_CHANGE.openapi_extra,
    responses={201: {"model": ScopeBody, "description": "Created"}, **problems.documented(408, 409, 413, 415, 507)},
)
async def put_scope(scope: InPath, change: Annotated[ScopeChange, Depends(_CHANGE)], parts: Given) -> Response:
    """Creates a scope (201) or changes it (200); what is not given stays, a policy is replaced whole."""
    parts.services.gatekeeper.require(change.policy or {})
    overridable: tuple[str, ...] | Literal["keep"] | None = "keep"
    if "overridable" in change.model_fields_set:
        overridable = change.overridable
    now, created = await parts.services.knowledge.put_scope(
        scope,
        policy=change.policy,
        overridable=overridable,
        embedder=change.embedder,
        reembed=change.reembed,
    )
    return reply(_body(parts.services, now), 201 if created else 200)


@router.delete(
    "/scopes/{scope}",
    status_code=204,
    dependencies=[Depends(Allow(Role.ADMIN))],
    responses=problems.documented(404, 507),
)
async def delete_scope(scope: InPath, parts: Given) -> Response:
    """Deletes a scope with all it knows; the scope 'default' comes back empty."""
    await parts.services.knowledge.delete_scope(scope)
    return Response(status_code=204)


def _body(services: Services, scope: Scope) -> ScopeBody:
    return ScopeBody.of(scope, services.gatekeeper.policy(scope))
