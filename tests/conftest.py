"""A running service, in process and as a process of its own; nothing in it is faked."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from scopegate.settings import Settings

FERRIES = [
    {"text": "The night ferry to Harwick leaves from pier 4 at a quarter past ten.", "source": "timetable"},
    {"text": "The crossing to Harwick takes seven hours.", "source": "timetable"},
    {"text": "Bicycles travel free of charge on every ferry.", "source": "fares"},
]
READY_S = 60


@contextlib.contextmanager
def running(data_dir: Path, **settings: Any) -> Iterator[TestClient]:
    """A client of a ready service in this process."""
    from scopegate.app import create_app  # unit tests do without the models

    app = create_app(Settings(data_dir=data_dir, **settings))
    with TestClient(app, raise_server_exceptions=False) as client:
        wait_ready(client)
        yield client


def wait_ready(client: httpx.Client | TestClient) -> None:
    end = time.monotonic() + READY_S
    while (answer := client.get("/readyz")).status_code != 200:
        assert time.monotonic() < end, answer.text
        time.sleep(0.05)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """An open service that knows FERRIES in its scope 'default'."""
    with running(tmp_path_factory.mktemp("data")) as client:
        assert client.post("/scopes/default/facts", json={"facts": FERRIES}).status_code == 201
        yield client


@pytest.fixture
def open_app(tmp_path: Path) -> Iterator[Callable[..., TestClient]]:
    """Makes services with settings of their own on one data directory, this test's."""
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(running(tmp_path, **settings))


class Server:
    """`scopegate serve` as a process, on a port of its own choosing; its log lines are read as they come."""

    def __init__(self, data_dir: Path, **environment: str) -> None:
        self.data_dir = data_dir
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scopegate.cli", "serve", "--port", "0", "--data-dir", str(data_dir)],
            env=os.environ | environment,
            stderr=subprocess.PIPE,
        )
        self.client = httpx.Client(timeout=30)
        self.log: list[dict[str, Any]] = []
        self.url = ""
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self) -> Server:
        """Waits until it is ready."""
        assert self._listening.wait(READY_S)
        assert self.url, self.log
        self.client.base_url = httpx.URL(self.url)
        wait_ready(self.client)
        return self

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(json.loads(line) if line.startswith(b"{") else {"event": line.decode()})
            if self.log[-1]["event"] == "listening":
                self.url = self.log[-1]["url"]
                self._listening.set()
        self._listening.set()

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Signals the process, and returns its exit code."""
        self.process.send_signal(by)
        return self.ended()

    def ended(self) -> int:
        """Waits for the process to end, and returns its exit code."""
        code = self.process.wait(30)
        self.client.close()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers on one data directory; they are stopped with the test."""
    started: list[Server] = []

    def start(**environment: str) -> Server:
        started.append(Server(tmp_path / "data", **environment))
        return started[-1].start()

    yield start
    for server in started:
        server.stop(signal.SIGKILL)
