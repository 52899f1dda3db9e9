"""POST /check, /check/batch and /answer on real models."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from scopegate.domain import Check, Delta, Unavailable, Verdict

KNOWN = "Which pier does the night ferry to Harwick leave from?"
UNKNOWN = "Who composed the opera about the clockmaker of Prague?"


def check(client: TestClient, **request: Any) -> dict[str, Any]:
    answer = client.post("/check", json=request)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_what_is_known_is_answerable(client: TestClient) -> None:
    verdict = check(client, question=KNOWN)
    assert verdict["decision"] == "ANSWERABLE"
    assert verdict["refused_by"] is None
    assert verdict["would_refuse"] is False
    assert verdict["confusion"] is None
    assert [gate["gate"] for gate in verdict["gates"]] == ["hard", "probe"]
    assert all(gate["passed"] and gate["status"] == "ok" for gate in verdict["gates"])
    best = verdict["evidence"][0]
    assert "pier 4" in best["text"]
    assert best["ratio"] == pytest.approx(best["distance"] / best["confidence"])
    assert verdict["gates"][0]["score"] == best["ratio"]
    assert verdict["scope"] == "default"
    assert verdict["revision"] >= 1


def test_a_refusal_is_a_200_that_says_why(client: TestClient) -> None:
    verdict = check(client, question=UNKNOWN)
    assert verdict["decision"] == "REFUSAL"
    assert verdict["would_refuse"] is True
    assert verdict["refused_by"] == "hard"
    assert verdict["gates"][1]["status"] == "skipped"
    assert verdict["gates"][1]["passed"] is None
    for span in verdict["confusion"]["spans"]:
        assert UNKNOWN[span["start"] : span["end"]] == span["text"]


def test_explain_asks_every_gate(client: TestClient) -> None:
    verdict = check(client, question=UNKNOWN, explain=True)
    assert verdict["refused_by"] == "hard"
    assert [gate["status"] for gate in verdict["gates"]] == ["ok", "ok"]


def test_observe_does_not_refuse(client: TestClient) -> None:
    verdict = check(client, question=UNKNOWN, policy={"mode": "observe"})
    assert verdict["decision"] == "ANSWERABLE"
    assert verdict["would_refuse"] is True


def test_policy_overrides_field_by_field(client: TestClient) -> None:
    verdict = check(client, question=KNOWN, policy={"alpha": 0.001, "k": 1, "gates": ["hard"]})
    assert verdict["refused_by"] == "hard"
    assert verdict["gates"][0]["threshold"] == 0.001
    assert len(verdict["gates"]) == len(verdict["evidence"]) == 1


def test_passages_are_judged_instead(client: TestClient) -> None:
    passage = {"text": "Anneke Vos composed the opera about the clockmaker of Prague.", "source": "programme"}
    verdict = check(client, question=UNKNOWN, passages=[passage, {"id": "x", "text": "It rained."}])
    assert verdict["decision"] == "ANSWERABLE"
    assert verdict["revision"] is None
    assert verdict["evidence"][0]["id"].startswith("p1")
    assert verdict["evidence"][0]["source"] == "programme"


def test_a_conversation_asks_its_last_user_turn(client: TestClient) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": UNKNOWN},
        {"role": "assistant", "content": "I do not know."},
        {"role": "user", "content": KNOWN},
        {"role": "assistant", "content": ""},
    ]
    assert check(client, messages=messages)["decision"] == "ANSWERABLE"
    assert check(client, messages=messages[:3])["decision"] == "REFUSAL"


def test_nulls_stand_for_nothing_given(client: TestClient) -> None:
    nothing = {"messages": None, "passages": None, "min_revision": None, "deadline_ms": None}
    assert check(client, question=KNOWN, **nothing)["decision"] == "ANSWERABLE"


def test_unknown_scope_is_404(client: TestClient) -> None:
    answer = client.post("/check", json={"question": KNOWN, "scope": "nowhere"})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:scopegate:unknown-scope"
    assert "nowhere" in answer.json()["detail"]


def test_a_revision_that_does_not_come_is_503(client: TestClient) -> None:
    answer = client.post("/check", json={"question": KNOWN, "min_revision": 10**6, "deadline_ms": 50})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"


def test_a_deadline_that_passes_refuses_or_fails(client: TestClient) -> None:
    passages = [{"text": " ".join(f"Pier {n} is closed on day {m}." for m in range(300))} for n in range(64)]
    late = {"question": KNOWN, "passages": passages, "deadline_ms": 1}
    verdict = check(client, **late)
    assert verdict["decision"] == "REFUSAL"
    assert verdict["gates"][0]["status"] == "deadline"
    assert check(client, **late, policy={"on_error": "answer"})["decision"] == "ANSWERABLE"
    assert client.post("/check", json={**late, "policy": {"on_error": "fail"}}).status_code == 503


def test_server_timing_names_every_gate(client: TestClient) -> None:
    timing = client.post("/check", json={"question": KNOWN}).headers["server-timing"]
    assert [entry.split(";")[0].strip() for entry in timing.split(",")] == ["hard", "probe", "total"]


def test_batch_answers_in_order_and_bad_items_spoil_nothing(client: TestClient) -> None:
    items = [
        {"question": KNOWN},
        {"question": " "},
        {"question": UNKNOWN},
        {"question": KNOWN, "scope": "nowhere"},
        {"question": KNOWN, "policy": {"k": 0}},
        "not even an object",
    ]
    answer = client.post("/check/batch", json={"items": items})
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [result.get("decision", result.get("status")) for result in results] == [
        "ANSWERABLE",
        422,
        "REFUSAL",
        404,
        422,
        422,
    ]
    assert results[4]["errors"][0]["loc"] == ["policy", "k"]


def test_a_batch_item_that_breaks_the_service_spoils_no_other(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gatekeeper = client.app.state.parts.services.gatekeeper  # type: ignore[attr-defined]
    check = gatekeeper.check

    async def breaks_at_one(asked: Check) -> Verdict:
        if asked.question == UNKNOWN:
            raise RuntimeError("the password is swordfish")
        verdict: Verdict = await check(asked)
        return verdict

    monkeypatch.setattr(gatekeeper, "check", breaks_at_one)
    answer = client.post("/check/batch", json={"items": [{"question": KNOWN}, {"question": UNKNOWN}]})
    assert answer.status_code == 200
    fine, broken = answer.json()["results"]
    assert fine["decision"] == "ANSWERABLE"
    assert broken["status"] == 500
    assert "swordfish" not in answer.text


def test_batch_has_bounds(client: TestClient) -> None:
    assert client.post("/check/batch", json={"items": []}).status_code == 422
    items = [{"question": KNOWN}] * 257
    assert client.post("/check/batch", json={"items": items}).status_code == 422
    results = client.post("/check/batch", json={"items": items[1:]}).json()["results"]
    assert [result["decision"] for result in results] == ["ANSWERABLE"] * 256


def test_a_batch_of_long_passages_waits_for_its_turn(client: TestClient) -> None:
    """Each reads four windows, which together are more than may wait for the reader."""
    long = [f"The {number}th ferry of the year leaves Solvik harbour at {number % 24}:00. " for number in range(80)]
    items = [
        {
            "question": f"When does ferry {number} leave?",
            "passages": [{"id": "p", "text": " ".join(long)}],
            "explain": True,
            "deadline_ms": 60_000,
        }
        for number in range(80)
    ]
    results = client.post("/check/batch", json={"items": items}).json()["results"]
    assert {gate["status"] for result in results for gate in result["gates"]} == {"ok"}


def test_a_batch_leaves_room_for_others(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    gatekeeper = client.app.state.parts.services.gatekeeper  # type: ignore[attr-defined]
    check = gatekeeper.check
    going = most = 0

    async def counted(asked: Check) -> Verdict:
        nonlocal going, most
        going += 1
        most = max(most, going)
        verdict: Verdict = await check(asked)
        going -= 1
        return verdict

    monkeypatch.setattr(gatekeeper, "check", counted)
    assert client.post("/check/batch", json={"items": [{"question": KNOWN}] * 64}).status_code == 200
    assert most == 16


def test_answer_cites_what_it_says(client: TestClient) -> None:
    answer = client.post("/answer", json={"question": KNOWN}).json()
    assert answer["decision"] == "ANSWER"
    assert answer["model"] == "extractive"
    assert answer["refusal"] is None
    assert "pier 4" in answer["answer"]
    assert answer["evidence"]
    assert all(cited["text"] in answer["answer"] for cited in answer["evidence"])
    assert answer["verdict"]["decision"] == "ANSWERABLE"


def test_answer_refuses_in_a_sentence(client: TestClient) -> None:
    answer = client.post("/answer", json={"question": UNKNOWN}).json()
    assert answer["decision"] == "REFUSAL"
    assert answer["answer"] is None
    assert answer["evidence"] == []
    assert answer["refusal"]
    assert answer["verdict"]["refused_by"] == "hard"


def test_answer_in_observe_mode_answers_and_says_what_it_would_have_done(client: TestClient) -> None:
    observed = {"question": KNOWN, "policy": {"alpha": 0.001, "mode": "observe"}}
    answer = client.post("/answer", json=observed).json()
    assert answer["decision"] == "ANSWER"
    assert "pier 4" in answer["answer"]
    assert answer["verdict"]["decision"] == "ANSWERABLE"
    assert answer["verdict"]["would_refuse"] is True
    assert answer["verdict"]["refused_by"] == "hard"
    enforced = {"question": KNOWN, "policy": {"alpha": 0.001}}
    assert client.post("/answer", json=enforced).json()["decision"] == "REFUSAL"


def test_a_check_is_not_streamed(client: TestClient) -> None:
    answer = client.post("/check", json={"question": KNOWN, "stream": True})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["body", "stream"]


def test_an_answer_is_streamed_where_asked_for(client: TestClient) -> None:
    answer = client.post("/answer", json={"question": KNOWN, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-request-id"]
    *deltas, (last, body) = events(answer.text)
    assert {name for name, _ in deltas} == {"delta"}
    assert last == "answer"
    assert "".join(delta["text"] for _, delta in deltas) == body["answer"]
    whole = client.post("/answer", json={"question": KNOWN}).json()
    assert {**body, "id": 0, "verdict": 0} == {**whole, "id": 0, "verdict": 0}
    assert body["verdict"]["decision"] == "ANSWERABLE"


def test_a_refusal_is_one_event_and_no_text(client: TestClient) -> None:
    ((name, body),) = events(client.post("/answer", json={"question": UNKNOWN, "stream": True}).text)
    assert name == "refusal"
    assert (body["decision"], body["answer"], body["evidence"]) == ("REFUSAL", None, [])
    assert body["verdict"]["refused_by"]


def test_what_fails_before_a_stream_begins_has_a_status(client: TestClient) -> None:
    answer = client.post("/answer", json={"question": KNOWN, "scope": "nowhere", "stream": True})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


def test_what_fails_amid_a_stream_is_an_error_event(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(*_: object) -> AsyncGenerator[Delta, None]:
        yield Delta("The ferry ")
        raise Unavailable("the LLM went away")

    monkeypatch.setattr("scopegate.answering.answerer.Answerer.stream", breaks)
    (first, text), (last, problem) = events(client.post("/answer", json={"question": KNOWN, "stream": True}).text)
    assert (first, text) == ("delta", {"text": "The ferry "})
    assert (last, problem["status"], problem["detail"]) == ("error", 503, "the LLM went away")


def events(text: str) -> list[tuple[str, Any]]:
    """A stream's events as names and bodies."""
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in text.split("\n\n") if block]
    return [(block["event"], json.loads(block["data"])) for block in blocks]


def test_a_read_queue_that_is_full_is_503_at_once(open_app: Callable[..., TestClient]) -> None:
    client = open_app(read_queue=1)
    passages = [{"text": f"Ferry {n} is late."} for n in range(2)]
    answer = client.post("/check", json={"question": KNOWN, "passages": passages, "explain": True})
    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:scopegate:overloaded"


def test_an_embed_queue_that_is_full_is_503_at_once(open_app: Callable[..., TestClient]) -> None:
    client = open_app(embed_queue=1)
    passages = [{"text": f"Ferry {n} is late."} for n in range(64)]
    answer = client.post("/check", json={"question": KNOWN, "passages": passages})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["type"] == "urn:scopegate:overloaded"
