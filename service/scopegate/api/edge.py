"""The one middleware: a request's id, its bounds, its figures, its line in the log."""

from __future__ import annotations

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

# Nginx's status for a client that went away before its answer.
_CLIENT_GONE = 499


class Edge:
    """Pure ASGI around the whole app."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._max_requests = settings.max_requests
        self._max_body = settings.max_body
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
        self._in_flight += 1
        self._metrics.in_flight.set(self._in_flight)
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                if self._in_flight > self._max_requests and not watching:
                    busy = problems.problem(
                        503, "as many requests are in flight as the service takes; try again", "overloaded"
                    )
                    await problems.response(busy)(scope, receive, send_marked)
                else:
                    await self._app(scope, _bounded(receive, headers, self._max_body), send_marked)
            except ClientDisconnect:
                status = _CLIENT_GONE
            except Exception:
                log.exception("failed")
                if status:
                    raise
                failed = problems.problem(500, "the service failed at this; its log tells more under the request's id")
                await problems.response(failed)(scope, receive, send_marked)
            finally:
                self._in_flight -= 1
                self._record(scope, status or _CLIENT_GONE, perf_counter() - started, watching)

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


def _bounded(receive: Receive, headers: dict[bytes, bytes], limit: int) -> Receive:
    """receive, which raises a 413 rather than hand on more than limit bytes, or wait for them."""
    announced = headers.get(b"content-length", b"")
    refused = announced.isdigit() and int(announced) > limit
    received = 0

    async def receive_bounded() -> Message:
        nonlocal received
        if not refused:
            message = await receive()
            received += len(message.get("body", b""))
            if received <= limit:
                return message
        raise HTTPException(413, f"a body may have at most {limit} bytes", {"Connection": "close"})

    return receive_bounded
