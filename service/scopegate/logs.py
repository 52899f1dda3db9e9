"""Structured logs: one line an event, JSON for machines and columns for a person at a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import orjson
import structlog

from scopegate.settings import Settings


def configure(settings: Settings) -> None:
    """Sends every line, uvicorn's and the libraries' too, to stderr in one shape; the request's id is in each."""
    console = settings.log_format == "console" or (settings.log_format == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[structlog.typing.Processor]
    if console:
        # Rich tracebacks would print every local, and with them question texts and keys.
        render = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    else:
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
    level = getattr(logging, settings.log_level.upper())
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(), _without_colour],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(level, logging.INFO), force=True)
    # A line with the LLM's URL for every request; a dozen at each start.
    for chatty in ("httpx2", "openai", "faiss", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _json(event: MutableMapping[str, Any], default: Any) -> str:
    return orjson.dumps(event, default=default).decode()


def _without_colour(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event.pop("color_message", None)
    return event
