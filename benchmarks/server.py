"""A scopegate service as a process of its own, for benchmarks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil


@dataclass
class Server:
    """A running service."""

    url: str
    process: psutil.Process
    ready_s: float

    def cpu_s(self) -> float:
        """CPU seconds that it has used, in user and kernel mode."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def resident_mb(self) -> float:
        """Its memory in RAM, in MB."""
        return float(self.process.memory_info().rss / 1e6)


@contextmanager
def serving(data_dir: Path, **settings: str) -> Iterator[Server]:
    """A service, ready; stopped at the end. Raises RuntimeError where it does not start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SCOPEGATE_")}
    environment |= {f"SCOPEGATE_{name.upper()}": value for name, value in settings.items()}
    start = time.perf_counter()
    command = [sys.executable, "-m", "scopegate.cli", "serve", "--port", str(port), "--data-dir", str(data_dir)]
    log = (data_dir / "service.log").open("w")
    service = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        while True:
            if service.poll() is not None or time.perf_counter() - start > 120:
                raise RuntimeError(f"the service did not start: {Path(log.name).read_text()[-2000:]}")
            try:
                if httpx.get(f"{url}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.01)
        yield Server(url, psutil.Process(service.pid), time.perf_counter() - start)
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(60)
        log.close()


def add_facts(url: str, texts: list[str]) -> None:
    """Adds facts in calls of 10,000."""
    with httpx.Client(timeout=600) as client:
        for start in range(0, len(texts), 10_000):
            facts = [{"text": text} for text in texts[start : start + 10_000]]
            client.post(f"{url}/scopes/default/facts", json={"facts": facts}).raise_for_status()
