"""Keys and roles, and what a request may override."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from scopegate.app import create_app
from scopegate.domain import Invalid
from scopegate.settings import Settings

KEYS = "check:asker,write:writer,admin:chief"
RANK = {None: 0, "wrong": 0, "asker": 1, "writer": 2, "chief": 3}
CHAT = {"model": "scopegate/default", "messages": [{"role": "user", "content": "When?"}]}
FACT = {"facts": [{"id": "f", "text": "The gate opens at six."}]}
LABELLED = {"questions": [{"question": "When?", "answerable": True}, {"question": "Who?", "answerable": False}]}
EVALUATION = {
    "task": "retrieval",
    "dataset": [{"question": "When?", "document": "The gate opens at six.", "in_scope": False}],
    "options": {"retrievers": ["bm25"]},
}

# Every route, and the rank of the key it needs.
ROUTES = [
    ("GET", "/livez", None, 0),
    ("GET", "/readyz", None, 0),
    ("GET", "/metrics", None, 1),
    ("GET", "/docs", None, 1),
    ("GET", "/openapi.json", None, 1),
    ("POST", "/check", {"question": "When?"}, 1),
    ("POST", "/check/batch", {"items": [{"question": "When?"}]}, 1),
    ("POST", "/answer", {"question": "When?"}, 1),
    ("POST", "/v1/chat/completions", CHAT, 1),
    ("GET", "/v1/models", None, 1),
    ("GET", "/scopes", None, 2),
    ("GET", "/scopes/default", None, 2),
    ("POST", "/scopes/default/facts", FACT, 2),
    ("GET", "/scopes/default/facts", None, 2),
    ("GET", "/scopes/default/facts/f", None, 2),
    ("PATCH", "/scopes/default/facts/f", {"confidence": 0.5}, 2),
    ("POST", "/scopes/default/documents", {"documents": [{"text": "It shuts at ten."}]}, 2),
    ("GET", "/scopes/default/export", None, 2),
    ("PUT", "/scopes/default", {"overridable": ["k"]}, 3),
    ("POST", "/generate-dataset", {"documents": [{"text": "It shuts at ten."}]}, 2),
    ("POST", "/scopes/default/enrich", {"seed_questions": ["When?"]}, 2),
    ("POST", "/evaluate", EVALUATION, 2),
    ("POST", "/scopes/default/calibrate", LABELLED, 2),
    ("POST", "/scopes/default/calibrate", LABELLED | {"apply": True}, 3),
    ("GET", "/jobs", None, 2),
    ("GET", "/jobs/{job}", None, 2),
    ("GET", "/jobs/{job}/events", None, 2),
    ("GET", "/jobs/{job}/result", None, 2),
    ("POST", "/jobs/{job}/accept", {"ids": ["a"]}, 2),
    ("DELETE", "/jobs/{job}", None, 2),
    ("DELETE", "/scopes/default/facts/f", None, 2),
    ("DELETE", "/scopes/default", None, 3),
]
# What a key may ask for, and this service has no LLM for, or the job is no proposal.
NOT_HERE = {"/generate-dataset", "/scopes/default/enrich", "/jobs/{job}/accept"}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    from tests.conftest import running

    with running(tmp_path_factory.mktemp("closed"), api_keys=KEYS) as client:
        yield client


@pytest.fixture(scope="module")
def job(closed: TestClient) -> str:
    """An ended job's id."""
    headers = {"Authorization": "Bearer writer"}
    made: str = closed.post("/evaluate", json=EVALUATION, headers=headers).json()["id"]
    closed.get(f"/jobs/{made}/events", headers=headers)
    return made


@pytest.mark.parametrize("key", RANK)
@pytest.mark.parametrize(("method", "path", "body", "needed"), ROUTES, ids=lambda value: str(value)[:30])
def test_roles(
    closed: TestClient, job: str, method: str, path: str, body: object, needed: int, key: str | None
) -> None:
    if path.endswith("/f"):
        closed.post("/scopes/default/facts", json=FACT, headers={"Authorization": "Bearer writer"})
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    answer = closed.request(method, path.format(job=job), json=body, headers=headers)
    if RANK[key] >= needed and path in NOT_HERE:
        assert answer.status_code == 409
    elif RANK[key] >= needed:
        assert answer.is_success, answer.text
    elif RANK[key] == 0:
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
    else:
        assert answer.status_code == 403
    if not answer.is_success:
        kind = "application/json" if path.startswith("/v1/") else "application/problem+json"
        assert answer.headers["content-type"] == kind
        assert not key or key not in answer.text


def test_every_route_is_in_the_table(closed: TestClient) -> None:
    document = closed.get("/openapi.json", headers={"Authorization": "Bearer asker"}).json()
    documented = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    tested = {(method, re.sub("/f$", "/{id}", path.replace("/default", "/{scope}"))) for method, path, *_ in ROUTES}
    assert documented <= tested


@pytest.mark.parametrize(
    "header", ["asker", "Basic asker", "Bearer", "Bearer  ", "Bearer asker writer", "Bearer ASKER"]
)
def test_headers_that_are_no_key(closed: TestClient, header: str) -> None:
    assert closed.get("/metrics", headers={"Authorization": header}).status_code == 401


def test_the_scheme_s_case_does_not_matter(closed: TestClient) -> None:
    assert closed.get("/metrics", headers={"Authorization": "bearer asker"}).status_code == 200


def test_nobody_overrides_a_closed_service_by_default(closed: TestClient) -> None:
    for key in ("asker", "chief"):
        answer = closed.post(
            "/check",
            json={"question": "When?", "policy": {"alpha": 100, "k": 2}},
            headers={"Authorization": f"Bearer {key}"},
        )
        assert answer.status_code == 403
        assert answer.json()["type"] == "urn:scopegate:forbidden"
        assert "alpha, k" in answer.json()["detail"]


def test_a_scope_lets_override_what_it_names(open_app: Callable[..., TestClient]) -> None:
    client = open_app(api_keys=KEYS)
    chief = {"Authorization": "Bearer chief"}
    asker = {"Authorization": "Bearer asker"}
    client.put("/scopes/default", json={"overridable": ["k"]}, headers=chief)
    allowed = {"question": "When?", "policy": {"k": 2}}
    forbidden = {"question": "When?", "policy": {"k": 2, "alpha": 9}}
    assert client.post("/check", json=allowed, headers=asker).status_code == 200
    assert client.post("/answer", json=forbidden, headers=asker).status_code == 403
    results = client.post("/check/batch", json={"items": [allowed, forbidden]}, headers=asker).json()["results"]
    assert [result.get("status", 200) for result in results] == [200, 403]


def test_an_open_service_keeps_to_what_a_scope_names(client: TestClient) -> None:
    client.put("/scopes/shut", json={"overridable": []})
    answer = client.post("/check", json={"question": "When?", "scope": "shut", "policy": {"k": 1}})
    assert answer.status_code == 403


def test_malformed_keys_do_not_start() -> None:
    with pytest.raises(Invalid, match="entry 2"):
        create_app(Settings(api_keys="check:fine,owner:hush"))


def test_a_wrong_key_is_told_from_none(open_app: Callable[..., TestClient]) -> None:
    client = open_app(api_keys="check:one")
    asked = {"question": "Anything?"}
    assert "needs a key" in client.post("/check", json=asked).json()["detail"]
    wrong = client.post("/check", json=asked, headers={"Authorization": "Bearer two"})
    assert (wrong.status_code, wrong.json()["detail"]) == (401, "this key is not known")
