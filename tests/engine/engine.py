"""A vLLM of its own environment, as a process: started, watched and stopped."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".venv-engine"
PYTHON = PLACE / "bin" / "python"
READY_S = 400


def environment(probe: Path | None) -> dict[str, str]:
    """What an engine runs in. Raises AssertionError where its environment is not made yet."""
    assert (PLACE / ".ready").exists(), f"{PLACE.name} is missing or half made: `make test` makes it"
    mine = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SCOPEGATE_")}
    return inherited | mine | ({"SCOPEGATE_PROBE": str(probe)} if probe else {})


class Engine:
    """An OpenAI-compatible server of vLLM, serving the model in a folder under the name "model".

    probe: what SCOPEGATE_PROBE names. options: more of the server's own flags. variables: more of its environment. Its
    log goes to a file beside the model.
    """

    def __init__(self, model: Path, probe: Path | None = None, *options: str, **variables: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = model / f"engine-{port}.log"
        command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--model", str(model), "--served-model-name", "model", "--dtype", "float32"]
        command += ["--max-model-len", "2048", "--enforce-eager", *options]
        with self.log.open("wb") as log:
            # A group of its own, to be ended as one, but no session: Linux weighs sessions against each other, and on
            # few cores one whose workers spin, as an engine's do, has kept the tests off the processor for seconds.
            self.process = subprocess.Popen(
                command,
                env=environment(probe) | variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def __enter__(self) -> Engine:
        try:
            return self.ready()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ready(self) -> Engine:
        """Waits until it serves. Raises AssertionError, with its log's end, where it ends or takes too long."""
        end = time.monotonic() + READY_S
        while True:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return self
            except httpx.TransportError:
                time.sleep(0.2)

    def refused(self) -> str:
        """Waits until it has ended by itself, and returns its log. Raises AssertionError where it ended well."""
        try:
            assert self.process.wait(READY_S) != 0, self.said()
        finally:
            self.stop()
        return self.said()

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-8000:]

    def metrics(self) -> dict[str, float]:
        """The server's own metrics by name, summed over their labels."""
        sums: dict[str, float] = {}
        page = httpx.get(f"{self.url}/metrics").text
        for name, value in re.findall(r"^([a-z_:]+)(?:\{.*\})? (\S+)$", page, re.MULTILINE):
            sums[name] = sums.get(name, 0) + float(value)
        return sums

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """One request. Raises httpx.HTTPStatusError where it is refused."""
        answer = httpx.post(f"{self.url}{path}", json={"model": "model"} | body, timeout=120).raise_for_status()
        return dict(answer.json())

    def stop(self) -> None:
        """Ends it and all of its processes."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
