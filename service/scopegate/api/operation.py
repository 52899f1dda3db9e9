"""/livez, /readyz, /metrics, /docs and /openapi.json: for those who run the service."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import fastapi_offline
from fastapi import APIRouter, Depends, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from scopegate.api import problems
from scopegate.api.keys import Role
from scopegate.api.parts import Allow, Given
from scopegate.api.replies import reply
from scopegate.api.schemas import Health, Readiness

router = APIRouter(tags=["operation"])
_SWAGGER_UI = Path(fastapi_offline.__file__).parent / "static"
_any_key = [Depends(Allow(Role.CHECK))]


@router.get("/livez", response_model=Health)
async def livez() -> Response:
    """Whether the process runs."""
    return reply(Health(status="alive"))


@router.get("/readyz", response_model=Readiness, responses=problems.only(503))
async def readyz(request: Request, parts: Given) -> Response:
    """Whether it can answer; where not, the problem's detail names what is missing."""
    missing = parts.services.not_ready()
    if missing:
        return problems.response(problems.problem(503, "; ".join(missing), "not-ready"), request.scope["path"])
    llms = parts.services.llms
    return reply(Readiness(status="ready", llms=llms.status() if llms else []))


@router.get("/metrics", dependencies=_any_key, include_in_schema=False)
async def metrics(parts: Given) -> Response:
    """The service's figures, for Prometheus."""
    return Response(generate_latest(parts.metrics.registry), media_type=CONTENT_TYPE_LATEST)


@router.get("/openapi.json", dependencies=_any_key, include_in_schema=False)
async def openapi(request: Request) -> Response:
    """The OpenAPI document."""
    return reply(request.app.openapi())


@router.get("/docs", dependencies=_any_key, include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """The OpenAPI document, to be read and tried by a person, also without a network."""
    return get_swagger_ui_html(
        openapi_url="openapi.json",
        title=request.app.title,
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
    )


@router.get("/docs/{asset}", dependencies=_any_key, include_in_schema=False)
async def docs_asset(asset: Literal["swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"]) -> FileResponse:
    """A file of Swagger UI."""
    return FileResponse(_SWAGGER_UI / asset)
