"""Reading bodies: bytes to a valid type in one pass, by pydantic's own JSON parser.

The standard library's would recurse as deep as a body nests, and lets NaN and lone surrogates through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from email.message import Message
from typing import Any, Generic, TypeVar

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError

from scopegate.api.problems import details
from scopegate.api.schemas import FactIn, FactsRequest
from scopegate.domain import MAX_FACTS, NewFact

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"

# From this size on, a body is parsed beside the event loop.
LARGE = 64 * 1024


def media_type(request: Request, *accepted: str) -> str:
    """The body's media type. Raises a 415 where it is none of those accepted, or not in UTF-8."""
    declared = request.headers.get("content-type", "")
    if declared in accepted:
        return declared
    header = Message()
    header["content-type"] = declared
    kind = header.get_content_type()
    if kind not in accepted or header.get_content_charset("utf-8") != "utf-8":
        raise HTTPException(415, f"the body must be {' or '.join(accepted)} in UTF-8, and its Content-Type must say so")
    return kind


class Body(Generic[T]):
    """A dependency that reads a JSON body as T; the route's openapi_extra is its documentation."""

    def __init__(self, kind: type[T]) -> None:
        self._adapter = TypeAdapter(kind)
        self.openapi_extra = documented({JSON: kind.__name__})

    async def __call__(self, request: Request) -> T:
        """Raises a 415, or RequestValidationError with locations that begin with "body"."""
        media_type(request, JSON)
        return await self.parse(await request.body())

    async def parse(self, body: bytes) -> T:
        """The body's value. Raises RequestValidationError."""
        try:
            if len(body) < LARGE:
                return self._adapter.validate_json(body)
            return await asyncio.to_thread(self._adapter.validate_json, body)
        except ValidationError as error:
            raise RequestValidationError(details(error, "body")) from None


def documented(schemas: dict[str, str]) -> dict[str, Any]:
    """The OpenAPI entry of a body, from the name of a component by media type."""
    content = {kind: {"schema": {"$ref": f"#/components/schemas/{name}"}} for kind, name in schemas.items()}
    return {"requestBody": {"required": True, "content": content}}


_FACTS = Body(FactsRequest)
_FACT = TypeAdapter(FactIn)


class FactsBody:
    """A dependency that reads facts, as one JSON object or a fact a line."""

    openapi_extra = documented({JSON: FactsRequest.__name__, NDJSON: FactIn.__name__})

    async def __call__(self, request: Request) -> list[NewFact]:
        """Raises a 415, or RequestValidationError; for lines its locations name the line, from 1."""
        kind = media_type(request, JSON, NDJSON)
        body = await request.body()
        if kind == JSON:
            return [fact.to_domain() for fact in (await _FACTS.parse(body)).facts]
        lines = body.split(b"\n")
        return await asyncio.to_thread(facts_of_lines, lines)


def facts_of_lines(lines: Iterable[bytes], first: int = 1) -> list[NewFact]:
    """The facts of NDJSON lines; blank lines are passed over. first: the number of the first line.

    Raises RequestValidationError at the first line that is no fact, where there is none, or more than MAX_FACTS.
    """
    facts: list[NewFact] = []
    for number, line in enumerate(lines, first):
        if not line or line.isspace():
            continue
        if len(facts) == MAX_FACTS:
            raise _at(number, f"A call takes at most {MAX_FACTS} facts")
        try:
            facts.append(_FACT.validate_json(line).to_domain())
        except ValidationError as error:
            raise RequestValidationError(details(error, "body", "line", number)) from None
    if not facts:
        raise _at(first, "There is no fact")
    return facts


def _at(line: int, message: str) -> RequestValidationError:
    return RequestValidationError([{"loc": ("body", "line", line), "msg": message}])
