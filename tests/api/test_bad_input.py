"""Requests that make no sense: each is refused in the same shape, and nothing of it stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

QUESTION = "Which pier does the night ferry to Harwick leave from?"
JSON = {"Content-Type": "application/json"}


def refused(client: TestClient, body: Any, path: str = "/check", status: int = 422) -> dict[str, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(path, content=content, headers=JSON)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == status
    assert {"type", "title", "detail"} <= problem.keys()
    assert not any(secret in answer.text for secret in ("Traceback", "site-packages", "pydantic.dev"))
    if status == 422:
        assert problem["errors"]
        assert all(error.keys() == {"loc", "msg"} for error in problem["errors"])
    return problem


@pytest.mark.parametrize(
    "question",
    ["", " \n\t", "\u200b\u200b", "x" * 4097, "a\u0000b", "a\u0007b", "a\u001bb", 7, None, ["x"], True],
)
def test_question(client: TestClient, question: Any) -> None:
    refused(client, {"question": question})


@pytest.mark.parametrize("question", ["x" * 4096, "tabs\tand\nline\r\nends", "\x0b\x0cWhich?", "🛳️?", "哪个码头?"])
def test_question_that_is_fine(client: TestClient, question: str) -> None:
    assert client.post("/check", json={"question": question}).status_code == 200


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"question": QUESTION, "messages": [{"role": "user", "content": QUESTION}]},
        {"messages": []},
        {"messages": [{"role": "assistant", "content": QUESTION}]},
        {"messages": [{"role": "robot", "content": QUESTION}]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": "  "}]},
        {"messages": [{"role": "user", "content": "x" * 4097}]},
        {"messages": [{"role": "user", "content": QUESTION, "name": "x"}]},
        {"messages": {"role": "user", "content": QUESTION}},
    ],
)
def test_exactly_one_of_question_and_messages(client: TestClient, request_: dict[str, Any]) -> None:
    refused(client, request_)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alpha", 0),
        ("alpha", -1),
        ("alpha", 1e7),
        ("alpha", "1.2"),
        ("alpha", True),
        ("alpha", None),
        ("k", 0),
        ("k", -4),
        ("k", 101),
        ("k", 10**30),
        ("k", 1.5),
        ("k", True),
        ("gates", []),
        ("gates", ["softest"]),
        ("gates", ["hard", "hard"]),
        ("gates", "hard"),
        ("probe_threshold", -0.1),
        ("probe_threshold", 1.1),
        ("votes", 0),
        ("votes", 100),
        ("mode", "ask"),
        ("on_error", "shrug"),
        ("beta", 1),
    ],
)
def test_policy(client: TestClient, field: str, value: Any) -> None:
    problem = refused(client, {"question": QUESTION, "policy": {field: value}})
    assert problem["errors"][0]["loc"][:3] == ["body", "policy", field]


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" * 400])
@pytest.mark.parametrize("field", [b"alpha", b"probe_threshold"])
def test_numbers_that_are_none(client: TestClient, field: bytes, literal: bytes) -> None:
    refused(client, b'{"question": "Which?", "policy": {"%s": %s}}' % (field, literal))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("deadline_ms", 0),
        ("deadline_ms", 600_001),
        ("deadline_ms", "5"),
        ("min_revision", -1),
        ("min_revision", 2**63),
        ("explain", "yes"),
        ("explain", 1),
        ("scope", "Upper"),
        ("scope", "../etc"),
        ("scope", ""),
        ("scope", ".hidden"),
        ("scope", "a/b"),
        ("scope", "a" * 65),
        ("scope", "default\n"),
        ("passages", []),
        ("passages", [{"text": ""}]),
        ("passages", [{"text": " "}]),
        ("passages", [{"text": "x" * 20_001}]),
        ("passages", [{"text": "x"}] * 65),
        ("passages", [{"text": "x", "confidence": 0}]),
        ("passages", [{"text": "x", "confidence": 1.5}]),
        ("passages", [{"id": "p2", "text": "x"}, {"text": "y"}]),
        ("passages", ["x"]),
        ("llm_url", "http://elsewhere"),
    ],
)
def test_other_fields(client: TestClient, field: str, value: Any) -> None:
    problem = refused(client, {"question": QUESTION, field: value})
    if field != "passages":
        assert problem["errors"][0]["loc"] == ["body", field]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"question": "a"} {"question": "b"}',
        b'{"question": "\xff\xfe"}',
        b'{"question": "\\ud800"}',
        b'\xef\xbb\xbf{"question": "a"}',
        b"[" * 100_000,
        b'{"question":' * 100_000,
        b'{"question": "a", "policy": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_bodies_that_are_no_request(client: TestClient, body: bytes) -> None:
    refused(client, body)


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json; charset=latin-1",
        "application/x-ndjson",
        ";",
    ],
)
def test_content_type(client: TestClient, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    answer = client.post("/check", content=b'{"question": "Which?"}', headers=headers)
    assert answer.status_code == 415
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "fact",
    [
        {},
        {"text": ""},
        {"text": "\n"},
        {"text": "nul \u0000"},
        {"text": "x" * 20_001},
        {"text": "x", "confidence": 0},
        {"text": "x", "confidence": 1.5},
        {"text": "x", "confidence": -1},
        {"text": "x", "confidence": "1"},
        {"text": "x", "confidence": True},
        {"text": "x", "id": "../x"},
        {"text": "x", "id": ""},
        {"text": "x", "id": "a" * 129},
        {"text": "x", "provenances": [{"origin": "document", "document_id": "a" * 257}]},
        {"text": "x", "metadata": []},
        {"text": "x", "metadata": {"a": "\u0000"}},
        {"text": "x", "metadata": {"\u0000": 1}},
        {"text": "x", "metadata": {"a": 2**64}},
        {"text": "x", "metadata": {"a": [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}},
        {"text": "x", "provenances": []},
        {"text": "x", "source": "s", "provenances": [{"origin": "manual"}]},
        {"text": "x", "confidence": 0.5, "provenances": [{"origin": "manual", "confidence": 0.6}]},
        {"text": "x", "provenances": [{"origin": "hearsay"}]},
        {"text": "x", "created_at": "2026-01-01T00:00:00"},
        {"text": "x", "created_at": 1767225600},
        {"text": "x", "created_at": "0001-01-01T00:00:00+14:00"},
        {"text": "x", "embedding": [0.1]},
    ],
)
def test_facts(client: TestClient, fact: dict[str, Any]) -> None:
    problem = refused(client, {"facts": [{"text": "A fact beside a bad one."}, fact]}, "/scopes/bad/facts")
    assert problem["errors"][0]["loc"][:3] == ["body", "facts", 1]
    assert client.get("/scopes/bad").status_code == 404


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"1e999"])
def test_metadata_numbers_that_are_none(client: TestClient, literal: bytes) -> None:
    refused(client, b'{"facts": [{"text": "x", "metadata": {"a": %s}}]}' % literal, "/scopes/bad/facts")


def test_number_of_sentences(client: TestClient) -> None:
    text = "".join(f"Crate {n} is full. " for n in range(10_001))
    refused(client, {"documents": [{"text": text}]}, "/scopes/bad/documents")
    assert client.get("/scopes/bad").status_code == 404


def test_number_of_facts(client: TestClient) -> None:
    refused(client, {"facts": []}, "/scopes/bad/facts")
    refused(client, {"facts": [{"text": "x"}] * 10_001}, "/scopes/bad/facts")


def test_the_errors_told_are_bounded(client: TestClient) -> None:
    problem = refused(client, {"facts": [{"text": ""}] * 1000}, "/scopes/bad/facts")
    assert len(problem["errors"]) == 100


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (b'{"text": "Fine."}\n{"text": "Cut', 2),
        (b'{"text": "Fine."}\n\n{"text": ""}\n{"text": "Fine too."}', 3),
        (b'{"text": "Fine."}\nnull\n', 2),
        (b'{"text": "\xff"}\n', 1),
        (b"\n \n", 1),
        (b"", 1),
        (b'{"text": "x"}\n' * 10_001, 10_001),
    ],
)
def test_malformed_lines_leave_nothing(client: TestClient, lines: bytes, line: int) -> None:
    answer = client.post("/scopes/bad/facts", content=lines, headers={"Content-Type": "application/x-ndjson"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"][:3] == ["body", "line", line]
    assert client.get("/scopes/bad").status_code == 404


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"text": " "},
        {"text": "x\u0000"},
        {"text": "x", "id": ""},
        {"text": "x", "id": "a" * 257},
        {"text": "x", "url": "file:///"},
        {"text": 1},
    ],
)
def test_documents(client: TestClient, document: dict[str, Any]) -> None:
    refused(client, {"documents": [document]}, "/scopes/bad/documents")
    assert client.get("/scopes/bad").status_code == 404


def test_the_longest_ids_are_kept_as_they_are(client: TestClient) -> None:
    document = {"id": "d" * 256, "text": "The longest names belong to the smallest harbours."}
    assert client.post("/scopes/long/documents", json={"documents": [document]}).status_code == 201
    fact = {"id": "f" * 128, "text": "The shortest belong to the largest."}
    assert client.post("/scopes/long/facts", json={"facts": [fact]}).json()["ids"] == [fact["id"]]
    (given, _) = client.get("/scopes/long/facts").json()["items"]
    assert given["provenances"][0]["document_id"] == document["id"]


@pytest.mark.parametrize("literal", [b"NaN", b"0", b"1.5", b"-1", b"Infinity"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/scopes/bad/facts", b'{"facts": [{"text": "x", "confidence": %s}]}'),
        ("/scopes/bad/facts", b'{"facts": [{"text": "x", "provenances": [{"origin": "manual", "confidence": %s}]}]}'),
        ("/check", b'{"question": "Which?", "passages": [{"text": "x", "confidence": %s}]}'),
    ],
)
def test_confidences_that_are_none(client: TestClient, path: str, body: bytes, literal: bytes) -> None:
    problem = refused(client, body % literal, path)
    assert problem["errors"][0]["loc"][-1] == "confidence"
    assert client.get("/scopes/bad").status_code == 404


def test_a_document_may_stand_once(client: TestClient) -> None:
    refused(client, {"documents": [{"id": "a", "text": "One."}, {"id": "a", "text": "Two."}]}, "/scopes/bad/documents")


@pytest.mark.parametrize(
    "path",
    ["/scopes/%2e%2e", "/scopes/a%2Fb", "/scopes/%00", "/scopes/A", "/scopes/"],
)
def test_scope_names_with_tricks(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in {404, 422}
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "change",
    [
        {"policy": {"alpha": 0}},
        {"policy": {"alpha": None}},
        {"overridable": ["everything"]},
        {"overridable": ["k", "k"]},
        {"overridable": "k"},
        {"reembed": "yes"},
        {"embedder": "some-other-model"},
        {"embedder": ""},
        {"model_path": "/etc"},
    ],
)
def test_scope_changes(client: TestClient, change: dict[str, Any]) -> None:
    answer = client.put("/scopes/bad", json=change)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["loc"][0] == "body"
    assert client.get("/scopes/bad").status_code == 404


_NO_CURSORS = [f"cursor={2**63}", "cursor=99999999999999999999", "cursor=-1", "cursor=%D9%A3", "cursor=1&q=ferry"]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "cursor=", "cursor=nonsense", "q=%20", "page=2", *_NO_CURSORS]
)
def test_page_queries(client: TestClient, query: str) -> None:
    answer = client.get(f"/scopes/default/facts?{query}")
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_last_cursor_there_can_be_is_an_empty_page(client: TestClient) -> None:
    page = client.get(f"/scopes/default/facts?cursor={2**63 - 1}")
    assert page.status_code == 200
    assert page.json() == {"items": [], "next_cursor": None}


@pytest.mark.parametrize("cursor", ["../x", "A", "", "a" * 65])
def test_cursors_of_scopes(client: TestClient, cursor: str) -> None:
    assert client.get("/scopes", params={"cursor": cursor}).status_code == 422


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/check", 405), ("GET", "/check/", 404)]
)
def test_no_such_route(client: TestClient, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_list_is_not_called_too_short_for_a_wrong_entry(client: TestClient) -> None:
    wrong = client.post("/check", json={"question": "Anything?", "passages": ["a string"]}).json()["errors"]
    assert [error["loc"] for error in wrong] == [["body", "passages", 0]]
    empty = client.post("/check", json={"question": "Anything?", "passages": []}).json()["errors"]
    assert [error["loc"] for error in empty] == [["body", "passages"]]


def test_a_gate_that_needs_an_llm_is_refused_without_one(client: TestClient) -> None:
    asked = client.post("/check", json={"question": "What?", "policy": {"gates": ["soft"]}})
    kept = client.put("/scopes/keen", json={"policy": {"gates": ["soft"]}})
    for answer in (asked, kept):
        assert answer.status_code == 422
        assert "'soft' is not available" in answer.json()["detail"]
