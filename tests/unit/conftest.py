"""The real encoder, shared, and knowledge on a fresh data directory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from scopegate.inference.embedder import Embedder
from scopegate.inference.encoder import Encoder, load_encoder
from scopegate.knowledge import Knowledge
from scopegate.settings import Settings, models_dir

OpenKnowledge = Callable[..., AbstractAsyncContextManager[Knowledge]]


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    return load_encoder("minilm-l6-int8", models_dir())


@pytest.fixture
async def embedder(encoder: Encoder) -> AsyncIterator[Embedder]:
    embedder = Embedder(encoder, Settings(embed_threads=2))
    yield embedder
    await embedder.stop()


@pytest.fixture
def database_url() -> str | None:
    """Where knowledge is kept; None is SQLite in the data directory."""
    return None


@pytest.fixture
def settings(tmp_path: Path, database_url: str | None) -> Settings:
    return Settings(data_dir=tmp_path / "data", database_url=database_url, tail_interval_s=0.05)


@pytest.fixture
def open_knowledge(settings: Settings, embedder: Embedder) -> OpenKnowledge:
    """Opens knowledge on the test's data directory, as one process would; open it twice for two processes."""

    @asynccontextmanager
    async def opened(embedder: Embedder = embedder, **changed: object) -> AsyncIterator[Knowledge]:
        knowledge = Knowledge(settings.model_copy(update=changed), embedder)
        await knowledge.start()
        try:
            await knowledge.ready(20)
            yield knowledge
        finally:
            await knowledge.stop()

    return opened


@pytest.fixture
async def knowledge(open_knowledge: OpenKnowledge) -> AsyncIterator[Knowledge]:
    async with open_knowledge() as knowledge:
        yield knowledge
