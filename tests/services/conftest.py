"""Real Postgres and Redis servers, started and stopped by the tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from tests.services.redis_server import RedisServer, require_redis
from tests.unit.conftest import embedder, encoder, knowledge, open_knowledge, settings

__all__ = ["embedder", "encoder", "knowledge", "open_knowledge", "settings"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Postgres:
    """A server on its own data directory; start and stop it at will."""

    programs: Path
    folder: Path
    port: int

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), *arguments]
        if os.geteuid() == 0:  # the server refuses to run as root
            command = ["runuser", "-u", "postgres", "--", *command]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder)

    def create(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
        self._run("initdb", "-D", str(self.folder / "data"), "-A", "trust", "-U", "scopegate", "-E", "UTF8")

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-o", options, "-l", log, "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", mode, "-w", "stop")

    def url(self, database: str) -> str:
        return f"postgresql://scopegate@127.0.0.1:{self.port}/{database}"


def programs() -> Path | None:
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    folder = programs()
    if folder is None:
        if os.environ.get("CI"):
            pytest.fail("there is no Postgres here; `make services` installs it")
        pytest.skip("there is no Postgres here; `make services` installs it")
    with tempfile.TemporaryDirectory(prefix="scopegate-postgres-") as home:
        server = Postgres(folder, Path(home), free_port())
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")


@pytest.fixture
async def database_url(postgres: Postgres) -> str:
    """A fresh database on the server."""
    return await fresh_database(postgres)


async def fresh_database(postgres: Postgres) -> str:
    """Makes an empty database on the server; returns its URL."""
    name = f"t{uuid.uuid4().hex}"
    connection = await asyncpg.connect(postgres.url("postgres"))
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return postgres.url(name)


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """An empty Redis server of the test's own."""
    require_redis()
    server = RedisServer(free_port())
    server.start()
    try:
        yield server
    finally:
        server.kill()
