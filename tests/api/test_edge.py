"""The middleware and the routes for operation: request ids, bounds, failures, metrics, health, logs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from tests.conftest import wait_ready

from scopegate import logs
from scopegate.app import create_app
from scopegate.knowledge.store import ScopeReader
from scopegate.knowledge.view import ScopeView
from scopegate.settings import Settings

SECRET = "Which pier does the smuggler use?"


@pytest.mark.parametrize("given", ["mine-42", "x" * 128, "a b"])
def test_a_request_id_is_echoed(client: TestClient, given: str) -> None:
    for path in ("/livez", "/nowhere"):
        assert client.get(path, headers={"X-Request-ID": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", [None, "", "x" * 129, "caf\u00e9", "a\tb"])
def test_a_request_id_is_made(client: TestClient, given: str | None) -> None:
    headers = {} if given is None else {b"X-Request-ID": given.encode("latin-1")}
    made = {client.get("/livez", headers=headers).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    assert all(len(each) == 26 for each in made)


def test_a_body_beyond_the_limit_is_413(open_app: Callable[..., TestClient]) -> None:
    client = open_app(max_body=1000)
    headers = {"Content-Type": "application/json"}

    def chunks() -> Iterator[bytes]:
        for _ in range(50):
            yield b" " * 100

    for content in (b" " * 1001, chunks()):
        answer = client.post("/check", content=content, headers=headers)
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
        assert "1000" in answer.json()["detail"]
    fits = b'{"question": "Which?"}'.ljust(1000)
    assert client.post("/check", content=fits, headers=headers).status_code == 200


def test_what_breaks_is_a_500_that_tells_nothing(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(client.app.state.parts.services.knowledge, "fact", broken)  # type: ignore[attr-defined]
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        answer = client.get("/scopes/default/facts/x", headers={"X-Request-ID": "find-me"})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == "find-me"
    assert "swordfish" not in answer.text
    assert "RuntimeError" not in answer.text
    failure = next(line for line in lines if line["event"] == "failed")
    assert failure["exc_info"]
    assert failure["request_id"] == "find-me"


def test_a_traceback_shows_no_locals(capsys: pytest.CaptureFixture[str]) -> None:
    before = structlog.get_config()
    handlers = logging.root.handlers[:]
    try:
        logs.configure(Settings(log_format="console"))
        bearer = "swordfish"
        try:
            raise RuntimeError("broken")
        except RuntimeError:
            structlog.get_logger().exception("ours failed", about=len(bearer))
            logging.getLogger("library").exception("theirs failed")
    finally:
        structlog.configure(**before)
        logging.root.handlers[:] = handlers
    said = capsys.readouterr().err
    assert said.count("RuntimeError: broken") == 2
    assert bearer not in said


def metrics(client: TestClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = client.get("/metrics").text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_happened(open_app: Callable[..., TestClient]) -> None:
    client = open_app()
    client.post("/scopes/default/facts", json={"facts": [{"text": "Pier 4 is for ferries."}]})
    client.post("/check", json={"question": "What is pier 4 for?", "policy": {"gates": ["hard"]}})
    client.post("/check", json={"question": "Who wrote the anthem?"})
    client.post("/check", json={"question": ""})
    client.get("/scopes/default/facts/unknown-one")
    client.get("/scopes/default/facts/unknown-two")
    client.get("/no/such/path")
    told = metrics(client)

    def value(name: str, **labels: str) -> float:
        return told[name, frozenset(labels.items())]

    assert value("scopegate_requests_total", method="POST", route="/check", status="200") == 2
    assert value("scopegate_requests_total", method="POST", route="/check", status="422") == 1
    one_fact = "/scopes/{scope}/facts/{id}"
    assert value("scopegate_requests_total", method="GET", route=one_fact, status="404") == 2
    assert value("scopegate_requests_total", method="none", route="none", status="404") == 1
    assert value("scopegate_request_seconds_count", route="/check") == 3
    assert value("scopegate_decisions_total", decision="ANSWERABLE", refused_by="none") == 1
    assert value("scopegate_decisions_total", decision="REFUSAL", refused_by="hard") == 1
    assert value("scopegate_gate_results_total", gate="hard", status="ok") == 2
    assert value("scopegate_gate_results_total", gate="probe", status="skipped") == 1
    assert value("scopegate_gate_seconds_count", gate="hard") == 2
    assert value("scopegate_embed_queue") == 0
    assert value("scopegate_read_queue") == 0
    assert value("scopegate_requests_in_flight") == 1
    assert value("scopegate_index_facts", scope="default") == 1
    assert value("scopegate_index_revision", scope="default") >= 1


def test_two_apps_count_apart(client: TestClient, open_app: Callable[..., TestClient]) -> None:
    client.post("/check", json={"question": "Anything?"})
    other = metrics(open_app())
    assert not any("/check" in dict(labels).values() for _, labels in other)


def test_alive_and_ready(client: TestClient) -> None:
    assert client.get("/livez").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready", "llms": []}


def test_not_ready_while_the_index_loads(
    open_app: Callable[..., TestClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fact = {"facts": [{"text": "Pier 4 is for ferries."}]}
    assert open_app().post("/scopes/default/facts", json=fact).status_code == 201
    go_on = threading.Event()
    restore = ScopeView.restore

    async def slow(view: ScopeView, reader: ScopeReader) -> None:
        await asyncio.to_thread(go_on.wait, 30)
        await restore(view, reader)

    monkeypatch.setattr(ScopeView, "restore", slow)
    question = {"question": "What is pier 4 for?", "policy": {"gates": ["hard"]}}
    with TestClient(create_app(Settings(data_dir=tmp_path)), raise_server_exceptions=False) as client:
        try:
            end = time.monotonic() + 20
            while "'default' is loading" not in (answer := client.get("/readyz")).text:
                assert answer.status_code == 503
                assert time.monotonic() < end, answer.text
                time.sleep(0.02)
            assert answer.status_code == 503
            assert client.get("/livez").status_code == 200
            assert client.post("/check", json=question).status_code == 503
        finally:
            go_on.set()
        wait_ready(client)
        assert client.post("/check", json=question).json()["decision"] == "ANSWERABLE"


def test_a_store_that_does_not_answer_is_not_ready(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, database_url="sqlite:////proc/no/such.db")
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        assert "knowledge" in answer.json()["detail"]
        assert client.get("/livez").status_code == 200
        assert client.post("/check", json={"question": "Which?"}).status_code == 503


@pytest.mark.parametrize("log_questions", [False, True])
def test_questions_are_logged_only_where_asked_for(open_app: Callable[..., TestClient], log_questions: bool) -> None:
    client = open_app(log_questions=log_questions)
    with structlog.testing.capture_logs() as lines:
        client.post("/check", json={"question": SECRET})
        client.post("/answer", json={"question": SECRET})
        client.post("/check/batch", json={"items": [{"question": SECRET}]})
        client.post("/check", json={"question": SECRET, "colour": SECRET})
        client.get("/scopes/default/facts", params={"q": SECRET})
    assert (SECRET in str(lines)) is log_questions
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["status"] for line in requests] == [200, 200, 200, 422, 200]
    assert all(line["ms"] > 0 for line in requests)
