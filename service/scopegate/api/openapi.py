"""The OpenAPI document: FastAPI's, with the bodies that we read ourselves, and an example for every schema."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from scopegate.api.evaluation_schemas import CalibrateRequest, EvaluateRequest
from scopegate.api.examples import EXAMPLES
from scopegate.api.openai_schemas import ChatRequest
from scopegate.api.problems import OpenAIError, Problem
from scopegate.api.schemas import (
    AcceptRequest,
    AnswerRequest,
    BatchRequest,
    CheckRequest,
    DocumentsRequest,
    EnrichRequest,
    FactChange,
    FactIn,
    FactsRequest,
    GenerateRequest,
    ScopeChange,
)

_OURS = (
    AnswerRequest,
    CheckRequest,
    BatchRequest,
    FactIn,
    FactsRequest,
    FactChange,
    DocumentsRequest,
    ScopeChange,
    GenerateRequest,
    EnrichRequest,
    AcceptRequest,
    CalibrateRequest,
    EvaluateRequest,
    ChatRequest,
    Problem,
    OpenAIError,
)


def document(app: FastAPI) -> dict[str, Any]:
    """The document of the app's routes."""
    made = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
    )
    schemas: dict[str, Any] = made["components"]["schemas"]
    _, definitions = TypeAdapter.json_schemas(
        [(kind.__name__, "validation", TypeAdapter(kind)) for kind in _OURS],
        ref_template="#/components/schemas/{model}",
    )
    schemas.update(definitions["$defs"])
    for name, schema in schemas.items():
        schema["examples"] = schema["enum"][:1] if "enum" in schema else [EXAMPLES[name]]
    return made
