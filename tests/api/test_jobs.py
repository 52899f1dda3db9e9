"""Jobs over HTTP: made, followed, fetched, cancelled; the LLM is scripted behind the real protocol."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient
from tests.conftest import Server, running
from tests.llm.eloq import PLACES, World
from tests.scripted import Asked, Said, ScriptedLlm

DOCUMENTS = [place.document for place in PLACES]
OPTIONS = {"facts_per_document": 6, "rounds": 2, "partitions": 3, "in_scope_questions": 2, "votes": 3, "seed": 7}
REQUEST = {"documents": DOCUMENTS} | OPTIONS
UNKNOWN = "01KB3YQ4Z8M2N5P7R9T1V3X5Z7"


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
    """A service whose LLM knows PLACES; what a test leaves unfinished is cancelled."""
    llm.begin_again(World())
    yield service
    for status in ("queued", "running"):
        for job in service.get("/jobs", params={"status": status, "limit": 1000}).json()["items"]:
            service.delete(f"/jobs/{job['id']}")


def slow(_: Asked) -> Said:
    return Said("Well.", after_s=30)


def made(client: TestClient, **headers: str) -> dict[str, Any]:
    answer = client.post("/generate-dataset", json=REQUEST, headers=headers)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    return job


def ended(client: TestClient, job: dict[str, Any]) -> dict[str, Any]:
    end = time.monotonic() + 30
    while job["finished_at"] is None:
        assert time.monotonic() < end, job
        time.sleep(0.05)
        job = client.get(f"/jobs/{job['id']}").json()
    return job


def rows(client: TestClient, job: dict[str, Any]) -> list[dict[str, Any]]:
    answer = client.get(f"/jobs/{job['id']}/result")
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.iter_lines()]


def events(body: str) -> list[dict[str, Any]]:
    fields = [dict(line.split(": ", 1) for line in event.splitlines()) for event in body.split("\n\n") if event]
    return [{"id": int(event["id"]), "job": json.loads(event["data"])} for event in fields if "data" in event]


def test_a_data_set_is_made_and_comes_in_every_form(client: TestClient) -> None:
    job = made(client)
    assert (job["kind"], job["status"], job["progress"]["done"]) == ("generate", "queued", 0)
    job = ended(client, job)
    assert job["status"] == "succeeded"
    assert job["progress"] == {"done": 3, "total": 3, "stage": None, "remaining_s": None}
    assert job["summary"]["items"] == job["summary"]["documents"] == 3
    found = rows(client, job)
    assert {row["document_id"] for row in found} == {document["id"] for document in DOCUMENTS}
    assert {row["in_scope"] for row in found} == {True, False}
    parquet = client.get(f"/jobs/{job['id']}/result", params={"format": "parquet"})
    assert pq.read_table(io.BytesIO(parquet.content)).to_pylist() == found
    archive = client.get(f"/jobs/{job['id']}/result", params={"format": "eloq"})
    with zipfile.ZipFile(io.BytesIO(archive.content)) as files:
        assert json.loads(files.read("questions.json")) == {row["id"]: row["question"] for row in found}
        assert json.loads(files.read("news.json")).keys() == {document["id"] for document in DOCUMENTS}


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_llm_that_denies_every_request_fails_the_job_with_its_sentence(
    client: TestClient, llm: ScriptedLlm, status: int
) -> None:
    llm.begin_again(lambda _: Said(status=status))
    short = {"id": "short", "text": "Too short."}
    job = ended(client, client.post("/generate-dataset", json=REQUEST | {"documents": [*DOCUMENTS, short]}).json())
    assert job["status"] == "failed"
    assert job["error"] == (
        "nothing came of 4 items, and 3 of them failed; the first: "
        f"the LLM server answered with status {status}; look at its URL, model and key"
    )
    assert (job["summary"]["given_up"], job["summary"]["skipped"]) == (3, {"too_short": 1})


def test_an_llm_that_answers_one_document_in_five(client: TestClient, llm: ScriptedLlm) -> None:
    world, known = World(), PLACES[0]

    def moody(asked: Asked) -> Said | str:
        return world(asked) if known.name in json.dumps(asked.body) else Said(status=500)

    llm.begin_again(moody)
    unknown = [{"id": f"d{n}", "text": known.text.replace(known.name, "Nowhere")} for n in range(4)]
    documents = [*unknown[:2], known.document, *unknown[2:]]
    job = ended(client, client.post("/generate-dataset", json=REQUEST | {"documents": documents}).json())
    summary = job["summary"]
    assert (job["status"], summary["documents"], summary["without_questions"]) == ("succeeded", 5, 4)
    assert summary["failed_steps"] == {"claims": 4, "in_scope_questions": 4}
    assert {note.split(":")[0] for note in summary["notes"]} == {document["id"] for document in unknown}
    assert {row["document_id"] for row in rows(client, job)} == {known.document["id"]}
    assert len(rows(client, job)) == len(known.rows(seed=7))


def test_a_data_set_has_a_card(client: TestClient) -> None:
    job = ended(client, made(client))
    card = client.get(f"/jobs/{job['id']}/result", params={"format": "card"})
    assert card.headers["content-type"] == "text/markdown; charset=utf-8"
    assert f"| out-of-scope questions | {job['summary']['questions']['out_of_scope']} |" in card.text.splitlines()
    assert "data_files: data.jsonl" in card.text


def test_the_documents_of_a_scope_will_do(client: TestClient) -> None:
    documents = [{name: document[name] for name in ("id", "title", "text")} for document in DOCUMENTS]
    client.post("/scopes/places/documents", json={"documents": documents}).raise_for_status()
    answer = client.post("/generate-dataset", json={"scope": "places"} | OPTIONS)
    job = ended(client, answer.json())
    assert job["progress"]["total"] == 3
    assert client.post("/generate-dataset", json={"scope": "nowhere"}).status_code == 404
    problem = client.post("/generate-dataset", json={"scope": "default"})
    assert (problem.status_code, "has no documents" in problem.json()["detail"]) == (422, True)


def test_the_result_so_far_can_be_had_and_stays_where_a_job_is_cancelled(client: TestClient, llm: ScriptedLlm) -> None:
    world = World()
    llm.begin_again(lambda asked: slow(asked) if PLACES[2].name in json.dumps(asked.body) else world(asked))
    job = made(client)
    end = time.monotonic() + 20
    while client.get(f"/jobs/{job['id']}").json()["progress"]["done"] < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    so_far = rows(client, job)
    assert {row["document_id"] for row in so_far} == {DOCUMENTS[0]["id"], DOCUMENTS[1]["id"]}
    for form in ("jsonl", "parquet", "eloq", "card"):
        answer = client.get(f"/jobs/{job['id']}/result", params={"format": form})
        assert (answer.status_code, answer.headers["x-job-status"]) == (200, "running")
    parquet = client.get(f"/jobs/{job['id']}/result", params={"format": "parquet"})
    assert pq.read_table(io.BytesIO(parquet.content)).to_pylist() == so_far
    begun = time.monotonic()
    cancelled = client.delete(f"/jobs/{job['id']}").json()
    assert cancelled["status"] == "cancelled"
    while not any(asked.gone_at for asked in llm.asked):
        assert time.monotonic() - begun < 5, "the LLM was not told"
        time.sleep(0.02)
    assert rows(client, job) == so_far
    assert client.delete(f"/jobs/{job['id']}").json() == cancelled


def test_events_tell_each_change_until_the_end(client: TestClient) -> None:
    job = made(client)
    answer = client.get(f"/jobs/{job['id']}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = events(answer.text)
    assert [event["id"] for event in told] == sorted({event["id"] for event in told})
    assert told[-1]["job"] == client.get(f"/jobs/{job['id']}").json()
    assert told[-1]["job"]["status"] == "succeeded"
    again = client.get(f"/jobs/{job['id']}/events", headers={"Last-Event-ID": str(told[-1]["id"] - 1)})
    assert events(again.text) == told[-1:]
    over = client.get(f"/jobs/{job['id']}/events", headers={"Last-Event-ID": str(told[-1]["id"])})
    assert (over.status_code, over.content) == (204, b"")
    for nonsense in ("nonsense", "7" * 5_000, "-1"):
        answer = client.get(f"/jobs/{job['id']}/events", headers={"Last-Event-ID": nonsense})
        assert (answer.status_code, events(answer.text)) == (200, told[-1:])


async def test_listeners_are_many_and_end_with_the_service_at_once(
    serve: Callable[..., Server], llm: ScriptedLlm, tmp_path: Path
) -> None:
    llm.begin_again(slow)
    server = serve(SCOPEGATE_LLM_URL=llm.url, SCOPEGATE_MAX_REQUESTS="5")
    job = server.client.post("/generate-dataset", json=REQUEST).json()
    llm.wait_for(3)
    heard: list[int] = []

    async def listen(client: httpx.AsyncClient) -> None:
        async with client.stream("GET", f"/jobs/{job['id']}/events") as answer:
            async for line in answer.aiter_lines():
                heard.extend([answer.status_code] if line.startswith("event: job") else [])

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=30, limits=limits) as client:
        listening = [asyncio.create_task(listen(client)) for _ in range(100)]
        while len(heard) < 100:
            await asyncio.sleep(0.05)
        assert server.client.get(f"/jobs/{job['id']}").status_code == 200, "listeners count as requests"
        begun = time.monotonic()
        assert await asyncio.to_thread(server.stop) == 0
        assert time.monotonic() - begun < 10
        await asyncio.gather(*listening)
    assert set(heard) == {200}
    assert not [line for line in server.log if line.get("level") == "error"]
    with closing(sqlite3.connect(tmp_path / "data" / "scopegate.db")) as database:
        assert set(database.execute("SELECT state, worker FROM job_items")) == {("waiting", None)}


def test_a_fresh_service_has_nothing_to_warn_of(serve: Callable[..., Server]) -> None:
    server = serve()
    assert server.stop() == 0
    assert {line["level"] for line in server.log} == {"info"}


def test_a_key_makes_one_job(client: TestClient) -> None:
    job = made(client, **{"Idempotency-Key": "one"})
    assert made(client, **{"Idempotency-Key": "one"})["id"] == job["id"]
    other = client.post("/generate-dataset", json=REQUEST | {"seed": 8}, headers={"Idempotency-Key": "one"})
    assert other.status_code == 409
    assert made(client, **{"Idempotency-Key": "two"})["id"] != job["id"]


def test_a_thousand_jobs_are_made_listed_and_cancelled_quickly(client: TestClient, llm: ScriptedLlm) -> None:
    llm.begin_again(slow)
    jobs = [made(client)["id"] for _ in range(1000)]
    begun = time.monotonic()
    page = client.get("/jobs", params={"limit": 1000, "status": "queued"}).json()
    assert time.monotonic() - begun < 2
    assert len(page["items"]) > 900
    begun = time.monotonic()
    for job in reversed(jobs):
        assert client.delete(f"/jobs/{job}").json()["status"] == "cancelled"
    assert time.monotonic() - begun < 30
    page = client.get("/jobs", params={"limit": 1000, "status": "cancelled", "kind": "generate"}).json()
    assert [job["id"] for job in page["items"]] == jobs[::-1]


@pytest.mark.parametrize(
    "change",
    [
        {"documents": []},
        {"documents": None},
        {"scope": "default"},
        {"documents": [{"id": "a", "text": "One."}, {"id": "a", "text": "Two."}]},
        {"documents": [{"text": "One."}, {"id": "d1", "text": "Two."}]},
        {"documents": [{"text": 7}]},
        {"documents": [{"text": "nul \x00"}]},
        {"documents": [{"id": "a"}]},
        {"documents": [{"text": "One.", "colour": "red"}]},
        {"facts_per_document": 1},
        {"partitions": 1},
        {"rounds": 0},
        {"votes": 0},
        {"in_scope_questions": -1},
        {"seed": 1.5},
        {"seed": -1},
        {"facts_per_document": 101},
        {"rounds": 21},
        {"partitions": 21},
        {"in_scope_questions": 101},
        {"votes": 100},
        {"seed": 2**31},
        {"url": "http://elsewhere"},
    ],
)
def test_a_wrong_request_makes_no_job(client: TestClient, change: dict[str, Any]) -> None:
    before = client.get("/jobs").json()["items"][:1]
    answer = client.post("/generate-dataset", json=REQUEST | change)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"]
    assert client.get("/jobs").json()["items"][:1] == before


def test_what_there_is_nothing_of_is_404_and_what_makes_no_sense_422(client: TestClient) -> None:
    for job_id in (UNKNOWN, "nope", "no%00pe", f"{UNKNOWN}%0A"):
        for path in (f"/jobs/{job_id}", f"/jobs/{job_id}/events", f"/jobs/{job_id}/result"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["type"]) == (404, "urn:scopegate:unknown-job"), path
            assert answer.json()["detail"].startswith("there is no job '")
    assert client.delete(f"/jobs/{UNKNOWN}").status_code == 404
    job = made(client)
    for path in (f"/jobs/{job['id']}/result?format=csv", "/jobs?status=lost", "/jobs?cursor=x"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json"), path
    assert client.post("/generate-dataset", json=REQUEST, headers={"Idempotency-Key": ""}).status_code == 422


def test_without_an_llm_the_answer_says_what_to_set(open_app: Callable[..., TestClient]) -> None:
    answer = open_app().post("/generate-dataset", json=REQUEST)
    assert answer.status_code == 409
    assert "SCOPEGATE_LLM_URL" in answer.json()["detail"]


def test_jobs_want_a_key_that_may_write(open_app: Callable[..., TestClient], llm: ScriptedLlm) -> None:
    llm.begin_again(World())
    client = open_app(llm_url=llm.url, api_keys="check:ask,write:make")
    assert client.post("/generate-dataset", json=REQUEST).status_code == 401
    assert client.get("/jobs", headers={"Authorization": "Bearer ask"}).status_code == 403
    assert client.get("/jobs", headers={"Authorization": "Bearer make"}).status_code == 200


def test_unfinished_jobs_resume_at_the_next_start(tmp_path: Path, llm: ScriptedLlm) -> None:
    llm.begin_again(slow)
    with running(tmp_path, llm_url=llm.url) as client:
        job = made(client)
        llm.wait_for(3)
    llm.begin_again(World())
    with running(tmp_path, llm_url=llm.url) as client:
        assert ended(client, job)["status"] == "succeeded"
        found = [row["id"] for row in rows(client, job)]
        assert len(found) == len(set(found)) > 3
