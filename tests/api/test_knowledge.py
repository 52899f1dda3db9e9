"""Scopes, facts, documents and export over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from scopegate.inference.encoder import OnnxEncoder

NDJSON = {"Content-Type": "application/x-ndjson"}


def add(client: TestClient, scope: str, *facts: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(f"/scopes/{scope}/facts", json={"facts": list(facts)})
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


def export(client: TestClient, scope: str) -> bytes:
    answer = client.get(f"/scopes/{scope}/export")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    return answer.content


def test_a_scope_is_made_changed_and_deleted(client: TestClient) -> None:
    made = client.put("/scopes/lakes", json={"policy": {"alpha": 0.9, "gates": ["hard"]}, "overridable": ["k"]})
    assert made.status_code == 201
    scope = made.json()
    assert scope["policy"] == {"alpha": 0.9, "gates": ["hard"]}
    assert scope["effective_policy"]["alpha"] == 0.9
    assert scope["effective_policy"]["k"] == 4
    assert scope["overridable"] == ["k"]
    assert scope["facts"] == scope["documents"] == 0
    assert scope["created_at"].endswith("Z")

    changed = client.put("/scopes/lakes", json={"policy": {"k": 2}})
    assert changed.status_code == 200
    assert changed.json()["policy"] == {"k": 2}
    assert changed.json()["overridable"] == ["k"]
    assert client.put("/scopes/lakes", json={"overridable": None}).json()["overridable"] is None
    assert client.get("/scopes/lakes").json()["policy"] == {"k": 2}

    assert client.delete("/scopes/lakes").status_code == 204
    for method in ("GET", "DELETE"):
        gone = client.request(method, "/scopes/lakes")
        assert gone.status_code == 404
        assert gone.json()["type"] == "urn:scopegate:unknown-scope"


def test_the_scope_s_policy_holds_for_checks(client: TestClient) -> None:
    add(client, "strict", {"text": "The lighthouse was built in 1871."})
    client.put("/scopes/strict", json={"policy": {"alpha": 0.0001, "k": 1}})
    verdict = client.post("/check", json={"question": "When was the lighthouse built?", "scope": "strict"}).json()
    assert verdict["refused_by"] == "hard"
    assert verdict["gates"][0]["threshold"] == 0.0001


def test_the_default_scope_comes_back_empty(open_app: Callable[..., TestClient]) -> None:
    client = open_app()
    add(client, "default", {"text": "The harbour froze in February."})
    assert client.delete("/scopes/default").status_code == 204
    assert client.get("/scopes/default").json()["facts"] == 0
    assert client.post("/check", json={"question": "When did the harbour freeze?"}).json()["decision"] == "REFUSAL"


def test_lists_come_in_pages(client: TestClient) -> None:
    for name in ("page-a", "page-b", "page-c"):
        add(client, name, *({"text": f"Buoy {n} is lit."} for n in range(5)))
    for path, count in (("/scopes/page-a/facts", 5), ("/scopes", client.get("/scopes?limit=1000").json())):
        expected = count if isinstance(count, int) else len(count["items"])
        seen: list[str] = []
        cursor = None
        while True:
            page = client.get(path, params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
            assert len(page["items"]) <= 2
            seen += [item.get("id") or item["name"] for item in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert len(seen) == len(set(seen)) == expected


def test_facts_are_added_known_and_found(client: TestClient) -> None:
    fact = {"text": "The cable car runs until midnight.", "confidence": 0.8, "source": "poster", "metadata": {"n": 1}}
    first = add(client, "town", fact, {"text": "The museum is shut on Mondays."})
    assert (first["added"], first["duplicates"], len(first["ids"])) == (2, 0, 2)
    again = add(client, "town", fact | {"source": "driver", "confidence": 0.9})
    assert (again["added"], again["duplicates"]) == (0, 1)
    assert again["ids"] == first["ids"][:1]
    assert again["revision"] > first["revision"]

    stored = client.get(f"/scopes/town/facts/{first['ids'][0]}").json()
    assert stored["confidence"] == 0.9
    assert {entry["source"] for entry in stored["provenances"]} == {"poster", "driver"}
    assert {entry["origin"] for entry in stored["provenances"]} == {"manual"}
    assert stored["metadata"] == {"n": 1}
    found = client.get("/scopes/town/facts", params={"q": "How late does the cable car run?", "limit": 1}).json()
    assert found["items"] == [stored]


def test_a_known_id_with_another_text_is_a_conflict(client: TestClient) -> None:
    add(client, "ids", {"id": "mine", "text": "The well is deep."})
    answer = client.post("/scopes/ids/facts", json={"facts": [{"text": "New."}, {"id": "mine", "text": "It is not."}]})
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:scopegate:conflict"
    assert client.get("/scopes/ids").json()["facts"] == 1


def test_corrections_and_removals_are_seen_by_the_next_check(client: TestClient) -> None:
    question = {
        "question": "What colour is the harbour master's boat?",
        "scope": "boats",
        "policy": {"gates": ["hard"]},
    }
    (id_,) = add(client, "boats", {"text": "The library has nine rooms."})["ids"]
    assert client.post("/check", json=question).json()["decision"] == "REFUSAL"

    corrected = client.patch(
        f"/scopes/boats/facts/{id_}",
        json={"text": "The harbour master's boat is green.", "confidence": 0.7, "metadata": {"seen": True}},
    )
    assert corrected.status_code == 200
    assert corrected.json()["confidence"] == 0.7
    assert corrected.json()["metadata"] == {"seen": True}
    verdict = client.post("/check", json=question).json()
    assert verdict["decision"] == "ANSWERABLE"
    assert verdict["evidence"][0]["confidence"] == pytest.approx(0.7)

    assert client.delete(f"/scopes/boats/facts/{id_}").status_code == 204
    assert client.post("/check", json=question).json()["decision"] == "REFUSAL"
    for method in ("GET", "DELETE"):
        assert client.request(method, f"/scopes/boats/facts/{id_}").json()["type"] == "urn:scopegate:unknown-fact"
    assert client.patch(f"/scopes/boats/facts/{id_}", json={"text": "Gone."}).status_code == 404


@pytest.mark.parametrize("change", [{}, {"text": ""}, {"confidence": 0}, {"confidence": None}, {"id": "other"}])
def test_corrections_that_make_no_sense(client: TestClient, change: dict[str, Any]) -> None:
    (id_,) = add(client, "stays", {"text": "The bell rings at noon."})["ids"]
    refused = client.patch(f"/scopes/stays/facts/{id_}", json=change)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["msg"]
    assert client.get(f"/scopes/stays/facts/{id_}").json()["text"] == "The bell rings at noon."


def test_documents_become_sentences_and_are_replaced(client: TestClient) -> None:
    def post(*documents: dict[str, str]) -> dict[str, Any]:
        answer = client.post("/scopes/docs/documents", json={"documents": documents})
        assert answer.status_code == 201, answer.text
        body: dict[str, Any] = answer.json()
        return body

    shared = "The mill stands by the river."
    first = post(
        {"id": "one", "title": "Mill", "text": f"{shared} It grinds rye.", "source": "guide"},
        {"id": "two", "text": f"{shared} Dr. Lind owns it."},
    )
    assert (first["documents"], first["sentences"], first["added"], first["removed"]) == (2, 3, 3, 0)
    second = post({"id": "one", "text": "The mill burnt down."})
    assert (second["sentences"], second["added"], second["removed"]) == (1, 1, 1)
    texts = {item["text"]: item for item in client.get("/scopes/docs/facts").json()["items"]}
    assert texts.keys() == {shared, "Dr. Lind owns it.", "The mill burnt down."}
    assert [entry["document_id"] for entry in texts[shared]["provenances"]] == ["two"]
    assert client.get("/scopes/docs").json()["documents"] == 2


def test_a_document_without_an_id_gets_one(client: TestClient) -> None:
    for _ in range(2):
        client.post("/scopes/anon/documents", json={"documents": [{"text": "The ice holds."}]})
    (fact,) = client.get("/scopes/anon/facts").json()["items"]
    assert len({entry["document_id"] for entry in fact["provenances"]}) == 2


def test_an_export_is_taken_back_unchanged(client: TestClient) -> None:
    add(
        client,
        "source",
        {"text": "Trams stop at ten.", "confidence": 0.25, "source": "a", "metadata": {"x": [1.5, None]}},
    )
    add(client, "source", {"text": "Trams stop at ten.", "confidence": 0.75, "source": "b", "id": None})
    client.post("/scopes/source/documents", json={"documents": [{"id": "d", "text": "Ülo fährt. 船が来る。"}]})
    lines = export(client, "source")
    assert all(json.loads(line)["provenances"] for line in lines.splitlines())
    taken = client.post("/scopes/copy/facts", content=lines, headers=NDJSON)
    assert taken.status_code == 201, taken.text
    assert taken.json()["added"] == len(lines.splitlines())
    assert export(client, "copy") == lines


def test_a_document_may_be_replaced_where_its_export_was_taken_in(client: TestClient) -> None:
    shared = "The mill stands by the river."
    documents = [
        {"id": "one", "text": f"{shared} It grinds rye."},
        {"id": "two", "text": f"{shared} Dr. Lind owns it."},
    ]
    assert client.post("/scopes/mills/documents", json={"documents": documents}).status_code == 201
    assert client.post("/scopes/moved/facts", content=export(client, "mills"), headers=NDJSON).status_code == 201
    again = {"documents": [{"id": "one", "text": "The mill burnt down."}]}
    replaced = client.post("/scopes/moved/documents", json=again).json()
    assert (replaced["sentences"], replaced["added"], replaced["removed"]) == (1, 1, 1)
    texts = {item["text"]: item for item in client.get("/scopes/moved/facts").json()["items"]}
    assert texts.keys() == {shared, "Dr. Lind owns it.", "The mill burnt down."}
    assert [entry["document_id"] for entry in texts[shared]["provenances"]] == ["two"]


def test_another_embedder_is_a_conflict_until_reembedding_is_asked_for(
    open_app: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    fact = {"text": "The bell rings at noon."}
    question = {"question": "When does the bell ring?", "scope": "bells", "policy": {"gates": ["hard"]}}
    before = open_app()
    add(before, "bells", fact)
    own = before.get("/scopes/bells").json()["embedder"]

    def other(name: str, models: Path) -> OnnxEncoder:
        encoder = OnnxEncoder(models / name)
        encoder.fingerprint = "other@1"
        return encoder

    monkeypatch.setattr("scopegate.services.load_encoder", other)
    after = open_app()
    for answer in (
        after.post("/check", json=question),
        after.post("/scopes/bells/facts", json={"facts": [fact]}),
    ):
        assert answer.status_code == 409, answer.text
        assert own in answer.json()["detail"]
    assert after.get("/readyz").status_code == 200

    assert after.put("/scopes/bells", json={"embedder": own}).status_code == 422
    reembedded = after.put("/scopes/bells", json={"embedder": "other@1", "reembed": True})
    assert reembedded.status_code == 200, reembedded.text
    assert reembedded.json()["embedder"] == "other@1"
    assert after.post("/check", json=question).json()["decision"] == "ANSWERABLE"


def test_lines_may_end_as_they_like(client: TestClient) -> None:
    content = b'{"text": "One ferry."}\r\n\n  {"text": "Two ferries."}'
    assert client.post("/scopes/lines/facts", content=content, headers=NDJSON).json()["added"] == 2


def test_export_of_an_unknown_scope_is_a_problem(client: TestClient) -> None:
    answer = client.get("/scopes/nowhere/export")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
