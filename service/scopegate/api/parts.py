"""What routes are given: the service's parts, and whether the caller's key lets them use them."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from scopegate.api.keys import Keys, Role
from scopegate.api.metrics import Metrics
from scopegate.services import Services

_bearer = HTTPBearer(auto_error=False, description="One of the keys in SCOPEGATE_API_KEYS, where it is set.")


async def _services(request: Request) -> Services:
    return cast(Services, request.app.state.services)


async def _keys(request: Request) -> Keys:
    return cast(Keys, request.app.state.keys)


async def _metrics(request: Request) -> Metrics:
    return cast(Metrics, request.app.state.metrics)


GivenServices = Annotated[Services, Depends(_services)]
GivenKeys = Annotated[Keys, Depends(_keys)]
GivenMetrics = Annotated[Metrics, Depends(_metrics)]


class Allow:
    """A dependency that lets through those whose key has the role; everybody while the service is open."""

    def __init__(self, role: Role) -> None:
        self._role = role

    async def __call__(
        self, keys: GivenKeys, bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> None:
        """Raises a 401 without a key of ours, a 403 with one that may not."""
        if keys.open:
            return
        role = None if bearer is None else keys.role(bearer.credentials)
        if role is None:
            raise HTTPException(
                401, "this needs a key: Authorization: Bearer KEY", {"WWW-Authenticate": 'Bearer realm="scopegate"'}
            )
        if role < self._role:
            raise HTTPException(403, f"this needs a key with the role {self._role.name.lower()}")
