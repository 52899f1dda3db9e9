"""An LLM server that follows a script, and the client of it; knowledge as in the unit tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from scopegate.llm.client import Llm
from tests.scripted import ScriptedLlm, llm_at
from tests.unit.conftest import database_url, embedder, encoder, knowledge, open_knowledge, settings

__all__ = ["database_url", "embedder", "encoder", "knowledge", "open_knowledge", "settings"]


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedLlm]:
    with ScriptedLlm() as server:
        yield server


@pytest.fixture
def server(running: ScriptedLlm) -> ScriptedLlm:
    """The server without a script, as though nothing had been asked of it so far."""
    running.begin_again()
    return running


@pytest.fixture
async def llm(server: ScriptedLlm) -> AsyncIterator[Llm]:
    """A client that knows what the server can do."""
    async with llm_at(server) as llm:
        yield llm
