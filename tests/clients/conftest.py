"""A service with keys and a scripted LLM, as a process; and an environment with other makers' clients in it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FERRIES, Server
from tests.scripted import ScriptedLlm, always

ROOT = Path(__file__).parents[2]
# Its own, since LlamaIndex does not go with the openai library of today.
PYTHON = ROOT / ".venv-clients" / "bin" / "python"

KEY = "asker"
KNOWN = "Which pier does the night ferry to Harwick leave from?"
UNKNOWN = "Who composed the opera about the clockmaker of Prague?"
ANSWER = "The night ferry to Harwick leaves from pier 4, at a quarter past ten in the evening [1]."
REPLY = f"EVIDENCE: 1\nCAN ANSWER: yes\nANSWER: {ANSWER}\nREASON: Passage 1 says so."


@pytest.fixture(scope="session")
def llm() -> Iterator[ScriptedLlm]:
    with ScriptedLlm(always(REPLY)) as llm:
        yield llm


@pytest.fixture(scope="session")
def base_url(tmp_path_factory: pytest.TempPathFactory, llm: ScriptedLlm) -> Iterator[str]:
    server = Server(
        tmp_path_factory.mktemp("clients"),
        SCOPEGATE_LLM_URL=llm.url,
        SCOPEGATE_API_KEYS=f"check:{KEY},admin:chief",
    ).start()
    chief = {"Authorization": "Bearer chief"}
    server.client.post("/scopes/default/facts", json={"facts": FERRIES}, headers=chief).raise_for_status()
    yield f"{server.url}/v1"
    assert server.stop() == 0


@pytest.fixture(scope="session")
def through(base_url: str) -> Callable[[str], dict[str, Any]]:
    """Runs a script of this folder in the clients' environment; what it prints last."""
    if not PYTHON.exists():
        pytest.fail("`make test` puts LangChain and LlamaIndex into .venv-clients, and that is not there")

    def run(script: str) -> dict[str, Any]:
        command = [str(PYTHON), "-W", "ignore", str(Path(__file__).with_name(script)), base_url, KEY, KNOWN, UNKNOWN]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, ran.stderr
        told: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return told

    return run
