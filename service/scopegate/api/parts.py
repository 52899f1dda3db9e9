"""What routes are given: the service's parts, and whether the caller's key lets them use them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from scopegate.api.keys import Keys, Role
from scopegate.api.metrics import Metrics
from scopegate.services import Services


@dataclass(frozen=True, slots=True)
class Parts:
    """What one app's routes work with; its state holds it under the name parts.

    data_sets: to be held by whoever has a data set in memory, which may be a gigabyte of it.
    """

    services: Services
    keys: Keys
    metrics: Metrics
    data_sets: asyncio.Lock = field(default_factory=asyncio.Lock)


def _parts(connection: HTTPConnection) -> Parts:
    return cast(Parts, connection.app.state.parts)


async def _given(connection: HTTPConnection) -> Parts:
    return _parts(connection)


Given = Annotated[Parts, Depends(_given)]


class Allow(HTTPBearer):
    """A dependency that lets through those whose key has the role; everybody while the service is open."""

    def __init__(self, role: Role) -> None:
        super().__init__(
            scheme_name="key", description="One of the keys in SCOPEGATE_API_KEYS, where it is set.", auto_error=False
        )
        self._role = role

    async def __call__(self, request: HTTPConnection) -> HTTPAuthorizationCredentials | None:
        """Raises a 401 without a key of ours, a 403 with one that may not."""
        keys = _parts(request).keys
        if keys.open:
            return None
        bearer = await super().__call__(request)
        role = None if bearer is None else keys.role(bearer.credentials)
        if role is None:
            wrong = "this needs a key: Authorization: Bearer KEY" if bearer is None else "this key is not known"
            raise HTTPException(401, wrong, {"WWW-Authenticate": 'Bearer realm="scopegate"'})
        if role < self._role:
            raise HTTPException(403, f"this needs a key with the role {self._role.name.lower()}")
        return bearer
