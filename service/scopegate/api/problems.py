"""Errors as application/problem+json (RFC 9457); under /v1 in the shape that OpenAI's clients read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal, NotRequired, cast

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from typing_extensions import TypedDict

from scopegate.domain import (
    Conflict,
    Forbidden,
    Invalid,
    Overloaded,
    ScopegateError,
    StorageFull,
    Unavailable,
    UnknownFact,
    UnknownJob,
    UnknownScope,
)

MEDIA_TYPE = "application/problem+json"

# A body of ten thousand bad facts is told the first of them.
MOST_ERRORS = 100

RETRY = {"Retry-After": "1"}

_KINDS: Mapping[type[ScopegateError], tuple[HTTPStatus, str]] = {
    UnknownScope: (HTTPStatus.NOT_FOUND, "unknown-scope"),
    UnknownFact: (HTTPStatus.NOT_FOUND, "unknown-fact"),
    UnknownJob: (HTTPStatus.NOT_FOUND, "unknown-job"),
    Conflict: (HTTPStatus.CONFLICT, "conflict"),
    Invalid: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid"),
    Forbidden: (HTTPStatus.FORBIDDEN, "forbidden"),
    Overloaded: (HTTPStatus.SERVICE_UNAVAILABLE, "overloaded"),
    Unavailable: (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
    StorageFull: (HTTPStatus.INSUFFICIENT_STORAGE, "storage-full"),
}


# Paths that speak OpenAI's protocol.
OPENAI_PREFIX = "/v1/"
# OpenAI's own codes, which its clients look out for; other kinds of problem are their own code.
_OPENAI_CODES = {"urn:scopegate:unknown-scope": "model_not_found", "about:blank": None}


class FieldError(TypedDict):
    """What is wrong with one field; loc is the way to it."""

    loc: Sequence[str | int]
    msg: str


class Problem(TypedDict):
    """An error, as RFC 9457 has it. errors is there for a 422."""

    type: str
    title: str
    status: int
    detail: str
    errors: NotRequired[list[FieldError]]


class OpenAIErrorDetail(TypedDict):
    """What went wrong; param is the way to the field that is wrong, where one is."""

    message: str
    type: Literal["invalid_request_error", "server_error"]
    code: str | None
    param: str | None


class OpenAIError(TypedDict):
    """An error, as OpenAI's clients read it."""

    error: OpenAIErrorDetail


def problem(status: int, detail: str, kind: str = "about:blank") -> Problem:
    """A problem of that status; without a kind of its own, its title is the status's."""
    title = HTTPStatus(status).phrase if kind == "about:blank" else kind.replace("-", " ").capitalize()
    return {
        "type": kind if kind == "about:blank" else f"urn:scopegate:{kind}",
        "title": title,
        "status": int(status),
        "detail": detail,
    }


def of_error(error: ScopegateError) -> Problem:
    """The problem that says what a part of the service raised."""
    status, kind = next(_KINDS[cls] for cls in type(error).__mro__ if cls in _KINDS)
    answer = problem(status, str(error), kind)
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        answer["errors"] = [{"loc": ["body"], "msg": str(error)}]
    return answer


def failed() -> Problem:
    """The problem of a bug of ours, which tells nothing of it."""
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, "the service failed at this; its log tells more under the request's id"
    )


def of_fields(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """The problem of a request that does not fit its schema, from pydantic's error details."""
    answer = problem(HTTPStatus.UNPROCESSABLE_ENTITY, "the request does not fit its schema", "invalid")
    if len(errors) > MOST_ERRORS:
        answer["detail"] = f"the request does not fit its schema; the first {MOST_ERRORS} errors are shown."
    answer["errors"] = [{"loc": error["loc"], "msg": error["msg"]} for error in errors[:MOST_ERRORS]]
    return answer


def details(error: ValidationError, *prefix: str | int) -> list[dict[str, Any]]:
    """A validation error's details, without what was sent, each location beginning with prefix.

    A list is not called too short for an entry of it that is wrong itself.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    within = {detail["loc"][:depth] for detail in found for depth in range(len(detail["loc"]))}
    return [
        {**detail, "loc": (*prefix, *detail["loc"])}
        for detail in found
        if detail["type"] != "too_short" or detail["loc"] not in within
    ]


def for_openai(answer: Problem) -> tuple[HTTPStatus, OpenAIError]:
    """The problem in OpenAI's shape, and its status; a request that does not fit its schema is a 400 there."""
    status = HTTPStatus(answer["status"])
    if status == HTTPStatus.UNPROCESSABLE_ENTITY:
        status = HTTPStatus.BAD_REQUEST
    code: str | None = answer["type"].removeprefix("urn:scopegate:").replace("-", "_")
    code = "invalid_api_key" if status == HTTPStatus.UNAUTHORIZED else _OPENAI_CODES.get(answer["type"], code)
    message, param = answer["detail"], None
    if errors := answer.get("errors"):
        message, param = errors[0]["msg"], ".".join(map(str, errors[0]["loc"][1:])) or None
        message = f"{param}: {message}" if param else message
    kind: Literal["server_error", "invalid_request_error"] = (
        "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    )
    return status, {"error": {"message": message, "type": kind, "code": code, "param": param}}


def response(answer: Problem, path: str, headers: Mapping[str, str] | None = None) -> Response:
    """The problem as the response to a request for that path; one that passes by itself says when to come back."""
    if answer["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
        headers = {**RETRY, **(headers or {})}
    if path.startswith(OPENAI_PREFIX):
        status, error = for_openai(answer)
        return Response(orjson.dumps(error), status, headers, "application/json")
    return Response(orjson.dumps(answer), answer["status"], headers, MEDIA_TYPE)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entries of a route's errors, besides those that every route has."""
    return only(*sorted({401, 403, 422, 503, *statuses}))


def documented_openai(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The same of a route under /v1."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/OpenAIError"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in sorted({400, 401, 403, 503, *statuses})
    }


def only(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entries of these errors."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def install(app: FastAPI) -> None:
    """Makes every error of the app a problem."""

    async def scopegate_error(request: Request, error: Exception) -> Response:
        return response(of_error(cast(ScopegateError, error)), request.scope["path"])

    async def invalid(request: Request, error: Exception) -> Response:
        return response(of_fields(cast(RequestValidationError, error).errors()), request.scope["path"])

    async def http_error(request: Request, error: Exception) -> Response:
        error = cast(HTTPException, error)
        return response(problem(error.status_code, error.detail), request.scope["path"], error.headers)

    app.add_exception_handler(ScopegateError, scopegate_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
