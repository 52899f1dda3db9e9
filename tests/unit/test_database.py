"""What the database says when it cannot be opened, and keeps to itself when a statement fails."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from scopegate.domain import Invalid
from scopegate.knowledge.database import Database


def test_postgres_without_its_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(Invalid, match=r"scopegate\[postgres\]"):
        Database("postgresql+asyncpg://me@127.0.0.1/scopegate")


@pytest.mark.parametrize(
    "url", ["me:swordfish@host", "postgresql+asyncpg://me:swordfish@host:port/x", "nonesuch://me:swordfish@host/x"]
)
def test_a_malformed_url_is_said_without_quoting_it(url: str) -> None:
    with pytest.raises(Invalid, match="database URL") as raised:
        Database(url)
    assert "swordfish" not in str(raised.value)


async def test_a_failed_statement_does_not_tell_its_parameters(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'db'}")
    await database.open()
    statement = text("INSERT INTO facts (scope, text) VALUES (1, :text)")
    with pytest.raises(IntegrityError) as raised:
        async with database.write() as connection:
            await connection.execute(statement, {"text": "swordfish"})
    assert "swordfish" not in str(raised.value)
    await database.close()


async def test_many_databases_are_opened_at_once(tmp_path: Path) -> None:
    databases = [Database(f"sqlite+aiosqlite:///{tmp_path / str(n)}") for n in range(8)]
    await asyncio.gather(*(database.open() for database in databases))
    for database in databases:
        async with database.read() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM facts"))).scalar_one() == 0
        await database.close()
