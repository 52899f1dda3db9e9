"""Evaluation and calibration over HTTP, as jobs; the LLM is scripted behind the real protocol."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.conftest import running
from tests.llm.eloq import PLACES, World
from tests.scripted import FOREVER, Asked, Said, ScriptedLlm, by_prompt

QUESTIONS = [
    {
        "question": "Which pier does the ferry to Harwick leave from?",
        "document": "The ferry to Harwick leaves from pier 4.",
        "topic": "sea",
        "in_scope": True,
    },
    {"question": "Who invented lava?", "document": "The ferry to Harwick leaves from pier 4.", "in_scope": False},
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Without an LLM."""
    with running(tmp_path_factory.mktemp("data")) as client:
        yield client


def ended(client: TestClient, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    """The job that came of the request, at its end."""
    answer = client.post(path, json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    end = time.monotonic() + 60
    job: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    while job["finished_at"] is None:
        assert time.monotonic() < end, job
        time.sleep(0.05)
        job = client.get(f"/jobs/{job['id']}").json()
    return job


def labelled(count: int) -> list[dict[str, Any]]:
    asked = []
    for n in range(count):
        passages = [{"text": f"The ferry number {n} to Harwick leaves from pier {n + 3} at noon."}]
        question = f"What does lava {n} weigh?" if n % 2 else f"Which pier does the ferry number {n} leave from?"
        asked.append({"question": question, "answerable": n % 2 == 0, "passages": passages, "group": f"{n}"})
    return asked


def test_the_gates_are_measured_as_a_job(service: TestClient) -> None:
    job = ended(service, "/evaluate", {"task": "detection", "dataset": QUESTIONS})
    assert (job["kind"], job["status"]) == ("evaluate", "succeeded")
    assert job["summary"]["judges"]["gates"]["accuracy"] == 1.0
    rows = [json.loads(line) for line in service.get(f"/jobs/{job['id']}/result").text.splitlines()]
    assert [row["out_of_scope"] for row in rows] == [{"gates": False}, {"gates": True}]


def test_the_same_key_is_the_same_job(service: TestClient) -> None:
    body = {"task": "retrieval", "dataset": QUESTIONS, "options": {"retrievers": ["sentences"]}}
    one = ended(service, "/evaluate", body, **{"Idempotency-Key": "k"})
    other = service.post("/evaluate", json=body, headers={"Idempotency-Key": "k"})
    assert (other.status_code, other.json()["id"]) == (202, one["id"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"task": "guessing", "dataset": QUESTIONS}, 422),
        ({"task": "detection", "dataset": []}, 422),
        ({"task": "detection", "dataset": [{"question": "Who?"}]}, 422),
        ({"task": "detection", "dataset": QUESTIONS, "options": {"retrievers": ["bm25"]}}, 422),
        ({"task": "detection", "dataset": QUESTIONS, "options": {"votes": 0}}, 422),
        ({"task": "retrieval", "dataset": QUESTIONS, "options": {"retrievers": ["local:any/model"]}}, 422),
        ({"task": "multiple_choice", "dataset": [{"question": "Who?"}]}, 422),
        ({"task": "multiple_choice", "dataset": QUESTIONS, "options": {"scope": "a", "gold_shares": [1]}}, 422),
        ({"task": "agreement", "dataset": [{"id": "1", "annotator": "A1", "group": "1"}]}, 422),
        ({"task": "response", "dataset": QUESTIONS}, 409),
        ({"task": "detection", "dataset": QUESTIONS, "options": {"by": ["llm"]}}, 409),
        ({"task": "detection", "dataset": "01KB3YQ4Z8M2N5P7R9T1V3X5Z7"}, 404),
    ],
)
def test_what_cannot_be_evaluated_is_said_at_once(service: TestClient, body: dict[str, Any], status: int) -> None:
    answer = service.post("/evaluate", json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]


def test_a_scope_is_calibrated_and_judges_by_it(service: TestClient) -> None:
    body = {"questions": labelled(60), "max_wrong": 0.2, "delta": 0.2, "largest_group": 2, "apply": True}
    job = ended(service, "/scopes/default/calibrate", body)
    assert (job["kind"], job["status"]) == ("calibrate", "succeeded")
    summary = job["summary"]
    assert summary["applied"]
    assert summary["guarantee"]["delta"] == 0.2
    assert "no more than 2 of them depend on each other" in summary["guarantee"]["statement"]
    assert service.get("/scopes/default").json()["policy"] == summary["recommended"]
    gates = service.post("/check", json={"question": "Who?", "explain": True}).json()["gates"]
    thresholds = {gate["gate"]: gate["threshold"] for gate in gates}
    assert thresholds == {"hard": summary["recommended"]["alpha"], "probe": summary["recommended"]["probe_threshold"]}


@pytest.mark.parametrize(
    ("scope", "changed", "status"),
    [
        ("nowhere", {}, 404),
        ("default", {"max_wrong": 0.0}, 422),
        ("default", {"max_wrong": 1}, 422),
        ("default", {"delta": 1.5}, 422),
        ("default", {"largest_group": 0}, 422),
        ("default", {"questions": []}, 422),
        ("default", {"questions": [{"question": "Who?"}]}, 422),
        ("default", {"questions": [{"question": "Who?", "answerable": "yes"}]}, 422),
        ("default", {"more": 1}, 422),
    ],
)
def test_what_cannot_be_calibrated_is_said_at_once(
    service: TestClient, scope: str, changed: dict[str, Any], status: int
) -> None:
    answer = service.post(f"/scopes/{scope}/calibrate", json={"questions": labelled(2)} | changed)
    assert answer.status_code == status, answer.text


def test_only_an_admin_may_have_thresholds_applied(open_app: Callable[..., TestClient]) -> None:
    client = open_app(api_keys="write:pen,admin:crown")
    body = {"questions": labelled(2)}
    for key, apply, status in (("pen", False, 202), ("pen", True, 403), ("crown", True, 202)):
        headers = {"Authorization": f"Bearer {key}"}
        answer = client.post("/scopes/default/calibrate", json=body | {"apply": apply}, headers=headers)
        assert answer.status_code == status, answer.text


def test_a_generated_data_set_is_evaluated_by_its_jobs_id(open_app: Callable[..., TestClient]) -> None:
    with ScriptedLlm(World()) as llm:
        client = open_app(llm_url=llm.url)
        options = {"facts_per_document": 6, "rounds": 2, "partitions": 3, "in_scope_questions": 2, "votes": 3}
        request = {"documents": [place.document for place in PLACES], **options}
        made = ended(client, "/generate-dataset", request)
        rows = [json.loads(line) for line in client.get(f"/jobs/{made['id']}/result").text.splitlines()]
        assert rows
        llm.script = by_prompt({"": lambda _: "It seems so.\nConfusing: yes"})
        body = {"task": "detection", "dataset": made["id"], "options": {"by": ["llm"], "votes": 1}}
        job = ended(client, "/evaluate", body)
        assert job["status"] == "succeeded"
        found = job["summary"]["judges"]["llm"]
        assert found["recall"] == 1.0
        assert found["matrix"]["true_yes"] == sum(not row["in_scope"] for row in rows)
        # The document is what the generator read, and so what the question was made for.
        asked = llm.asked[-1].user
        assert any(place.document["text"][:40] in asked for place in PLACES)
        assert "whole" not in job["summary"]
        body = {"task": "multiple_choice", "dataset": made["id"]}
        assert client.post("/evaluate", json=body).status_code == 422


def test_a_data_set_that_is_being_made_is_not_evaluated_and_a_cancelled_one_is_told(
    open_app: Callable[..., TestClient],
) -> None:
    world = World()

    def script(asked: Asked) -> Said | str:
        """The other document never comes to its end."""
        return world(asked) if PLACES[0].name in str(asked.body["messages"]) else Said(after_s=FOREVER)

    with ScriptedLlm(World()) as llm:
        client = open_app(llm_url=llm.url)
        llm.script = script
        options = {"facts_per_document": 6, "rounds": 2, "partitions": 3, "in_scope_questions": 2, "votes": 3}
        request = {"documents": [place.document for place in PLACES[:2]], **options}
        job = client.post("/generate-dataset", json=request).json()
        end = time.monotonic() + 60
        while not job["progress"]["done"]:
            assert time.monotonic() < end, job
            time.sleep(0.05)
            job = client.get(f"/jobs/{job['id']}").json()
        body = {"task": "retrieval", "dataset": job["id"], "options": {"retrievers": ["bm25"]}}
        answer = client.post("/evaluate", json=body)
        assert (answer.status_code, answer.json()["detail"]) == (409, f"the job {job['id']!r} has not ended yet")
        assert client.delete(f"/jobs/{job['id']}").json()["status"] == "cancelled"
        found = ended(client, "/evaluate", body)["summary"]
        assert found["questions"] > 0
        assert found["whole"] is False
