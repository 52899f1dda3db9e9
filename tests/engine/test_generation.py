"""Jobs on a real engine whose model knows nothing: what it says is garbage, and the jobs end with honest counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from scopegate.domain import Speaker, Turn
from scopegate.llm.client import Ask, Llm
from tests.conftest import running
from tests.engine import models
from tests.engine.engine import Engine
from tests.llm.eloq import PLACES


@pytest.fixture(scope="module")
def engine(llama: models.Model) -> Iterator[Engine]:
    # On a CPU, vLLM 0.32 dies of a seeded request whose prompt it reads in chunks.
    whole_prompts = ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096")
    with Engine(llama.path, None, "--max-model-len", "4096", *whole_prompts) as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with running(tmp_path_factory.mktemp("data"), llm_url=f"{engine.url}/v1") as client:
        yield client


def summary(client: TestClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """That of a job, which must succeed."""
    job = client.post(path, json=body).json()
    end = time.monotonic() + 300
    while job["finished_at"] is None:
        assert time.monotonic() < end, job
        time.sleep(0.2)
        job = client.get(f"/jobs/{job['id']}").json()
    assert job["status"] == "succeeded", job
    return dict(job["summary"])


def test_garbage_makes_no_questions_and_every_document_is_accounted_for(client: TestClient) -> None:
    documents = [place.document for place in PLACES]
    documents.append({"id": "short", "text": "Too short."})
    said = summary(client, "/generate-dataset", {"documents": documents, "facts_per_document": 4, "votes": 3})
    assert (said["documents"], said["items"], said["given_up"]) == (4, 4, 0)
    assert said["skipped"] == {"too_short": 1}
    assert said["without_questions"] == 3
    assert said["questions"] == {"in_scope": 0, "out_of_scope": 0}
    # Whatever the model said, each document was lost at a step that says so.
    lost = said.get("failed_steps", {})
    assert lost["claims"] + lost.get("guesses", 0) + lost.get("removal", 0) >= 3
    assert not any("status" in note for note in said["notes"])
    for document in documents:
        assert any(note.startswith(f"{document['id']}: ") for note in said["notes"])


def test_garbage_is_no_knowledge(client: TestClient) -> None:
    said = summary(client, "/scopes/default/enrich", {"seed_questions": ["How high is Mont Blanc?"], "review": False})
    assert said["failed_steps"]["questions"] == said["items"] == 10
    assert said["accepted"] == {"accepted": 0, "merged": 0, "added": 0, "duplicates": 0, "revision": 0}
    assert client.get("/scopes/default").json()["facts"] == 0


async def test_seeded_votes_differ_among_each_other_and_are_the_same_again(engine: Engine) -> None:
    llm = Llm(f"{engine.url}/v1", None, None, concurrency=4, queue=4, retries=0)
    await llm.find_out(None)
    ask = Ask((Turn(Speaker.USER, "Does the storm bell ring?"),), 24, temperature=1.0, n=3, seed=5)
    first, second = await llm.complete(ask), await llm.complete(ask)
    assert first.texts == second.texts
    assert len(set(first.texts)) == 3
    assert (await llm.complete(replace(ask, seed=50))).texts != first.texts
    await llm.close()
