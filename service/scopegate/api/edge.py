"""The one middleware: a request's id, its bounds, its figures, its line in the log."""

from __future__ import annotations

import asyncio
import re
from time import perf_counter

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scopegate.api import problems
from scopegate.api.metrics import Metrics
from scopegate.ids import new_id
from scopegate.settings import Settings

log = structlog.get_logger("scopegate.http")

# Probes and scrapes are answered however busy the service is, and are not worth a line each.
_WATCHING = {"/livez", "/readyz", "/metrics"}
_MAX_ID = 128

# Listeners wait more than they work, and are bounded where they listen.
_LISTENING = re.compile(r"/jobs/[^/]+/events")

# Nginx's status for a client that went away before its answer.
_CLIENT_GONE = 499


class Edge:
    """Pure ASGI around the whole app."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._max_requests = settings.max_requests
        self._max_body = settings.max_body
        self._body_timeout_s = settings.body_timeout_s
        self._metrics = metrics
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers an HTTP request; passes the rest on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id"))
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                total = f"total;dur={(perf_counter() - started) * 1000:.2f}".encode()
                marks = [(b"x-request-id", request_id.encode()), (b"server-timing", total)]
                message = {**message, "headers": [*message["headers"], *marks]}
            await send(message)

        watching = scope["path"] in _WATCHING
        counted = _LISTENING.fullmatch(scope["path"]) is None
        self._in_flight += counted
        self._metrics.in_flight.set(self._in_flight)
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                if counted and not watching and self._in_flight > self._max_requests:
                    busy = problems.problem(
                        503, "as many requests are in flight as the service takes; try again", "overloaded"
                    )
                    await problems.response(busy, scope["path"])(scope, receive, send_marked)
                else:
                    await self._app(scope, self._bounded(receive, headers), send_marked)
            except ClientDisconnect:
                status = _CLIENT_GONE
            except Exception:
                log.exception("failed")
                if status:
                    raise
                await problems.response(problems.failed(), scope["path"])(scope, receive, send_marked)
            finally:
                self._in_flight -= counted
                self._record(scope, status or _CLIENT_GONE, perf_counter() - started, watching)

    def _bounded(self, receive: Receive, headers: dict[bytes, bytes]) -> Receive:
        """receive, which raises a 413 rather than hand on a body that is too large, a 408 where one does not end."""
        announced = headers.get(b"content-length", b"")
        refused = announced.isdigit() and int(announced) > self._max_body
        close = {"Connection": "close"}
        end = asyncio.get_running_loop().time() + self._body_timeout_s
        received = 0
        complete = False

        async def receive_bounded() -> Message:
            nonlocal received, complete
            if complete:  # what comes now is that the client goes away
                return await receive()
            if not refused:
                try:
                    async with asyncio.timeout_at(end):
                        message = await receive()
                except TimeoutError:
                    raise HTTPException(
                        408, f"the body did not end within {self._body_timeout_s:g} seconds", close
                    ) from None
                received += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if received <= self._max_body:
                    return message
            raise HTTPException(413, f"a body may have at most {self._max_body} bytes", close)

        return receive_bounded

    def _record(self, scope: Scope, status: int, seconds: float, watching: bool) -> None:
        route = scope.get("route")
        template = "none" if route is None else route.path
        self._metrics.in_flight.set(self._in_flight)
        self._metrics.requests.labels(scope["method"] if route else "none", template, status).inc()
        self._metrics.seconds.labels(template).observe(seconds)
        # The query string is left out: ?q= is a question.
        write = log.debug if watching else log.info
        write("request", method=scope["method"], path=scope["path"], status=status, ms=round(seconds * 1000, 2))


def _request_id(given: bytes | None) -> str:
    if given is not None and 0 < len(given) <= _MAX_ID:
        text = given.decode("latin-1")
        if text.isascii() and text.isprintable():
            return text
    return new_id()
