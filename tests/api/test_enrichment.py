"""Enrichment over HTTP: facts proposed by a scripted LLM, and accepted in whole or in part."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.conftest import running
from tests.llm.ake import KNOWN, Agents
from tests.scripted import Asked, Said, ScriptedLlm

REQUEST = {"seed_questions": ["How high is Mont Blanc?"], "count": 4}
FACTS = [KNOWN[0][3], KNOWN[1][3]]


@pytest.fixture(scope="module")
def llm() -> Iterator[ScriptedLlm]:
    with ScriptedLlm() as llm:
        yield llm


@pytest.fixture(scope="module")
def service(llm: ScriptedLlm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with running(tmp_path_factory.mktemp("data"), llm_url=llm.url) as client:
        yield client


@pytest.fixture
def client(service: TestClient, llm: ScriptedLlm) -> Iterator[TestClient]:
    """A service whose LLM knows KNOWN, and an empty scope for each test."""
    llm.begin_again(Agents())
    service.put("/scopes/it", json={}).raise_for_status()
    yield service
    service.delete("/scopes/it")


def ended(client: TestClient, **changed: Any) -> dict[str, Any]:
    """A job on the scope, once it has ended."""
    answer = client.post("/scopes/it/enrich", json=REQUEST | changed)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    end = time.monotonic() + 30
    while job["finished_at"] is None:
        assert time.monotonic() < end, job
        time.sleep(0.05)
        job = client.get(f"/jobs/{job['id']}").json()
    assert job["status"] == "succeeded", job
    return job


def accept(client: TestClient, job: dict[str, Any], ids: list[str] | None) -> Any:
    return client.post(f"/jobs/{job['id']}/accept", json={"ids": ids})


def texts(client: TestClient) -> list[str]:
    return [fact["text"] for fact in client.get("/scopes/it/facts").json()["items"]]


def test_a_proposal_is_seen_before_any_of_it_enters(client: TestClient) -> None:
    job = ended(client)
    assert (job["kind"], job["summary"]["distinct"]) == ("enrich", 2)
    rows = [json.loads(line) for line in client.get(f"/jobs/{job['id']}/result").iter_lines()]
    assert [row["fact"] for row in rows] == FACTS
    assert client.get(f"/jobs/{job['id']}/result", params={"format": "parquet"}).status_code == 422
    assert texts(client) == []

    said = accept(client, job, [rows[1]["id"]])
    assert said.status_code == 200, said.text
    assert said.json() == {"accepted": 1, "merged": 0, "added": 1, "duplicates": 0, "revision": 1}
    assert texts(client) == FACTS[1:]

    said = accept(client, job, None)
    assert said.json() == {"accepted": 2, "merged": 0, "added": 1, "duplicates": 1, "revision": 2}
    assert sorted(texts(client)) == sorted(str(fact) for fact in FACTS)
    fact = client.get("/scopes/it/facts").json()["items"][0]
    assert fact["confidence"] == 0.9
    assert [provenance["origin"] for provenance in fact["provenances"]] == ["enriched"]


def test_without_review_the_facts_are_there_when_the_job_has_ended(client: TestClient) -> None:
    job = ended(client, review=False)
    assert job["summary"]["accepted"]["added"] == 2
    assert texts(client) == FACTS


def test_what_cannot_be_accepted(client: TestClient, llm: ScriptedLlm) -> None:
    job = ended(client)
    problem = accept(client, job, ["batch_7_7"])
    assert (problem.status_code, problem.json()["detail"]) == (422, "the proposal has no fact with the id 'batch_7_7'")
    assert accept(client, job, ["x" * 65]).status_code == 422
    assert client.post(f"/jobs/{job['id']}/accept", json={"id": None}).status_code == 422
    assert client.post("/jobs/01KB3YQ4Z8M2N5P7R9T1V3X5Z7/accept", json={}).status_code == 404
    assert accept(client, job, []).json()["accepted"] == 0
    client.delete("/scopes/it")
    assert accept(client, job, None).status_code == 404


def test_an_unfinished_proposal_is_accepted_once_its_job_is_cancelled(client: TestClient, llm: ScriptedLlm) -> None:
    agents, batches = Agents(), []

    def script(asked: Asked) -> Said | str:
        if "Write 10 new questions" in asked.user:
            batches.append(asked)
            if len(batches) > 1:
                return Said("Well.", after_s=30)
        return agents(asked)

    llm.script = script
    job = client.post("/scopes/it/enrich", json=REQUEST | {"count": 20}).json()
    end = time.monotonic() + 20
    while client.get(f"/jobs/{job['id']}").json()["progress"]["done"] < 1:
        assert time.monotonic() < end
        time.sleep(0.05)
    problem = accept(client, job, None)
    assert problem.status_code == 409
    assert "has not ended" in problem.json()["detail"]
    client.delete(f"/jobs/{job['id']}")
    assert accept(client, job, None).json()["added"] == 2


def test_a_job_that_proposes_nothing_has_nothing_to_accept(client: TestClient) -> None:
    job = client.post("/generate-dataset", json={"documents": [{"text": "Too short."}]}).json()
    problem = accept(client, job, None)
    assert problem.status_code == 409
    assert "proposes no facts" in problem.json()["detail"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed_questions": []},
        {"seed_questions": [" "]},
        {"count": 0},
        {"count": 10_001},
        {"min_confidence": 0},
        {"min_confidence": 1.1},
        {"review": "yes"},
        {"seed": -1},
        {"model": "mine"},
    ],
)
def test_requests_that_make_no_sense(client: TestClient, wrong: dict[str, Any]) -> None:
    answer = client.post("/scopes/it/enrich", json=REQUEST | wrong)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_scope_that_is_not_there(client: TestClient) -> None:
    assert client.post("/scopes/nowhere/enrich", json=REQUEST).status_code == 404
