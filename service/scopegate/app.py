"""create_app(): the parts, wired behind HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from scopegate import __version__
from scopegate.api import asking, enrichment, evaluation, facts, jobs, openai, operation, problems, scopes
from scopegate.api.edge import Edge
from scopegate.api.keys import Keys
from scopegate.api.metrics import Metrics
from scopegate.api.openapi import document
from scopegate.api.parts import Parts
from scopegate.services import Services
from scopegate.settings import Settings


def create_app(settings: Settings) -> FastAPI:
    """The service as an ASGI app, whose lifespan opens and closes its parts.

    Raises Invalid where a setting makes no sense: an unknown embedder, malformed keys.
    """
    keys = Keys.parse(settings.api_keys)
    services = Services(settings)
    metrics = Metrics(services)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with services.running(), services.jobs.working():
            yield

    app = FastAPI(
        title="scopegate",
        version=__version__,
        description="Decides, before an LLM answers, whether a question can be answered from the knowledge at hand.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.parts = Parts(services, keys, metrics)
    app.add_middleware(Edge, settings=settings, metrics=metrics)
    problems.install(app)
    for router in (
        asking.router,
        openai.router,
        scopes.router,
        facts.router,
        jobs.router,
        enrichment.router,
        evaluation.router,
        operation.router,
    ):
        app.include_router(router)
    made = document(app)
    app.openapi = lambda: made  # type: ignore[method-assign]
    return app
