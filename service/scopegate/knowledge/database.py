"""The SQL database: its engine, its transactions, and what its failures mean to a caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from scopegate.domain import Invalid, Overloaded, ScopegateError, StorageFull, Unavailable

BUSY_S = 15
CONNECT_S = 5
STATEMENT_S = 300
# The class of SQLSTATEs of values that do not fit (PostgreSQL documentation, appendix A).
DATA_EXCEPTION = "22"
# Any number that no other application on the same server uses for its advisory locks.
MIGRATION_LOCK = 0x5C09E6A7E
# Alembic's context and operations are globals of the process.
_MIGRATING = threading.Lock()
_AGAIN_S = 0.01


class Database:
    """SQLite or Postgres behind one pair of transactions: read() sees one snapshot, write() is alone with its scope.

    opened: set once its schema is this version's.
    Raises Invalid where the URL makes no sense, or where its driver is not installed; never quotes it.
    """

    def __init__(self, url: str) -> None:
        self.opened = asyncio.Event()
        self.is_sqlite = url.startswith("sqlite")
        if self.is_sqlite:
            options: dict[str, Any] = {"connect_args": {"timeout": BUSY_S}}
        else:
            timeouts = {"timeout": CONNECT_S, "command_timeout": STATEMENT_S}
            options = {"connect_args": timeouts, "pool_pre_ping": True, "pool_size": 10}
        try:
            # Parameters are the texts of facts; an error's message goes to the log without them.
            self._engine = create_async_engine(url, pool_timeout=CONNECT_S, hide_parameters=True, **options)
        except ModuleNotFoundError as error:
            raise Invalid("a Postgres database needs the extra: pip install 'scopegate[postgres]'") from error
        except (ArgumentError, ValueError):
            raise Invalid("the database URL is not one that SQLAlchemy can read") from None
        # SQLite has one writer; queueing here is fairer than its polling between processes.
        self._one_writer = asyncio.Lock()
        if self.is_sqlite:
            event.listen(self._engine.sync_engine, "connect", _configure_sqlite)
            event.listen(self._engine.sync_engine, "begin", _begin_sqlite)

    async def open(self) -> None:
        """Brings the schema to this version. Several may do so at once, here and in other processes.

        Raises Unavailable or StorageFull.
        """
        # A blocking wait would stop the very loop in which another database is being migrated.
        while not _MIGRATING.acquire(blocking=False):  # noqa: ASYNC110 - it is held on other loops, too
            await asyncio.sleep(_AGAIN_S)
        try:
            async with self.write() as connection:
                if not self.is_sqlite:
                    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
                await connection.run_sync(_migrate)
        finally:
            _MIGRATING.release()
        self.opened.set()

    async def close(self) -> None:
        """Closes every connection."""
        await self._engine.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that sees the database as it was at its first statement."""
        async with _translated(), self._engine.connect() as connection:
            if not self.is_sqlite:
                await connection.execution_options(isolation_level="REPEATABLE READ")
            async with connection.begin():
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that is durable when the block ends, and undone where it raises."""
        async with _translated():
            if self.is_sqlite:
                await self._one_writer.acquire()
            try:
                async with self._engine.connect() as connection:
                    await connection.execution_options(scopegate_writes=True)
                    async with connection.begin():
                        yield connection
            finally:
                if self.is_sqlite:
                    self._one_writer.release()


def _configure_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where _begin_sqlite says so, not where the driver guesses
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("scopegate_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _migrate(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except ScopegateError:
        raise
    except IntegrityError:
        raise
    except DBAPIError as error:
        raise _meaning(error) from error
    except PoolTimeout as error:
        raise Overloaded("the knowledge store has no connection free") from error
    except (OSError, TimeoutError) as error:
        raise Unavailable("the knowledge store does not answer") from error


def _meaning(error: DBAPIError) -> ScopegateError:
    said = str(error.orig).lower()
    state = getattr(error.orig, "sqlstate", None) or ""
    if state.startswith(DATA_EXCEPTION) or isinstance(getattr(error.orig, "__cause__", None), ValueError):
        return Invalid("a value does not fit the knowledge store")
    if "is full" in said or state == "53100":
        return StorageFull("the knowledge store has no room left; nothing of this call was kept")
    if "locked" in said or "busy" in said:
        return Overloaded("another process is writing to the knowledge store")
    return Unavailable("the knowledge store does not answer")
