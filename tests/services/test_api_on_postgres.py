"""What the API promises of knowledge and of bad input, with Postgres under it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, literal, select
from starlette.testclient import TestClient

from scopegate.domain import Invalid, NewFact, Origin, Provenance
from scopegate.knowledge.database import Database
from scopegate.settings import Settings
from tests.api.test_bad_input import *  # noqa: F403 the same promises, collected again for this database
from tests.api.test_knowledge import *  # noqa: F403
from tests.conftest import FERRIES, running
from tests.services.conftest import Postgres, fresh_database
from tests.unit.conftest import OpenKnowledge


@pytest.fixture(scope="module")
def client(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with running(tmp_path_factory.mktemp("data"), database_url=asyncio.run(fresh_database(postgres))) as client:
        assert client.post("/scopes/default/facts", json={"facts": FERRIES}).status_code == 201
        yield client


@pytest.fixture
def open_app(postgres: Postgres, tmp_path: Path) -> Iterator[Callable[..., TestClient]]:
    url = asyncio.run(fresh_database(postgres))
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(running(tmp_path, database_url=url, **settings))


async def test_a_value_that_no_column_holds_is_invalid_and_not_an_outage(open_knowledge: OpenKnowledge) -> None:
    provenance = Provenance(Origin.DOCUMENT, None, "d" * 257, 1.0)
    async with open_knowledge() as knowledge:
        with pytest.raises(Invalid):
            await knowledge.add("default", [NewFact("One.", (provenance,))])


async def test_a_number_that_no_driver_sends_is_invalid(settings: Settings) -> None:
    database = Database(settings.sql_url)
    with pytest.raises(Invalid):
        async with database.read() as connection:
            await connection.execute(select(literal(2**63, BigInteger)))
    await database.close()
