"""The domain's types as response bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import Response


def dump(body: Any) -> bytes:
    """JSON of dataclasses, mappings and sequences: times in UTC with Z, NaN and infinity as null."""
    return orjson.dumps(body, option=orjson.OPT_UTC_Z)


def reply(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(dump(body), status, headers, "application/json")
