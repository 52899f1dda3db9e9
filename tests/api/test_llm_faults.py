"""An LLM that fails in every way that servers have: each ends in the policy's decision, in time, with its cause."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.conftest import FERRIES, running
from tests.good_sense import GoodSense, Known
from tests.scripted import FOREVER, Asked, Said, Script, ScriptedLlm, always, by_prompt, until

from scopegate.app import create_app
from scopegate.settings import Settings

QUESTION = "Which pier does the night ferry to Harwick leave from?"
ANSWER = "It leaves from pier 4, every night, at a quarter past ten."
SENSE = GoodSense({QUESTION: Known(ANSWER, (FERRIES[0]["text"],))}).script()
LATE = "deadline"
# Enough for one more try on a busy machine; what is late at all is late at once.
DEADLINE_S, SHORT_S = 3.0, 0.5


@dataclass(frozen=True)
class Fault:
    """What the LLM does, and what the verdict says of it: the gate's status, and words of the cause."""

    script: Script
    cause: str
    status: str = "error"

    @property
    def deadline_s(self) -> float:
        return SHORT_S if self.status == LATE else DEADLINE_S


def sensibly(**how: Any) -> Script:
    """Good sense, delivered so."""

    def script(asked: Asked) -> Said:
        said = SENSE(asked)
        return replace(Said(said) if isinstance(said, str) else said, **how)

    return script


def streamed(body: bytes) -> Script:
    """The body as it is, with the type that the request asks for."""
    return lambda asked: Said(
        body=body, headers={"content-type": "text/event-stream" if asked.stream else "application/json"}
    )


def wrong_ids(asked: Asked) -> str:
    """Cites what was not retrieved; a judge cites nothing, and so points at nothing in its last line."""
    if "You judge" in asked.system:
        return "The passages say so.\nAnswerable: [99]"
    if "Reply with one JSON object" in asked.system:
        return json.dumps(
            {"reply": {"evidence": [99], "can_answer": True, "answer": ANSWER, "reasoning": "Number 99 says so."}}
        )
    return f"EVIDENCE: 99\nCAN ANSWER: yes\nANSWER: {ANSWER} [99]\nREASON: Number 99 says so."


LISTS = {"evidence": {"1": 1}, "can_answer": [True], "answer": [ANSWER], "confusion": ["other"], "reasoning": [1]}
FAULTS = {
    "hangs before it answers": Fault(always(Said(after_s=FOREVER)), "ran past the deadline", LATE),
    "hangs amid its reply": Fault(sensibly(stops_after=6, then="hang"), "ran past the deadline", LATE),
    "drips": Fault(sensibly(drip_s=0.3), "ran past the deadline", LATE),
    "breaks off": Fault(sensibly(stops_after=6), "broke the connection"),
    "has too many requests": Fault(always(Said(status=429)), "status 429"),
    "wants a long wait": Fault(always(Said(status=429, headers={"retry-after": "60"})), "status 429"),
    "wants a wait past the deadline": Fault(always(Said(status=429, headers={"retry-after": "8"})), "status 429"),
    "has no room": Fault(always(Said(status=503, headers={"retry-after": "0.1"})), "status 503"),
    "is broken": Fault(always(Said(status=500)), "status 500"),
    "breaks off amid its failure": Fault(always(Said(status=500, stops_after=0)), "status 500"),
    "hangs amid its failure": Fault(always(Said(status=500, stops_after=0, then="hang")), "status 500"),
    "refuses the key": Fault(always(Said(status=401)), "status 401"),
    "sends no JSON": Fault(streamed(b"data: {not json\n\n"), "is no JSON"),
    "sends another protocol": Fault(streamed(b'data: {"choices": 7}\n\n'), "is no"),
    "sends numbers for text": Fault(
        streamed(b'data: {"choices": [{"index": 0, "delta": {"content": 7}}]}\n\n'), "is no"
    ),
    "does not end": Fault(streamed(b"data: " + b"x" * (9 << 20)), "does not end"),
    "sends a page": Fault(always(Said(body=b"<html>Hello</html>", headers={"content-type": "text/html"})), "the LLM"),
    "sends no choices": Fault(always(Said(choices=False)), "the LLM"),
    "replies with broken JSON": Fault(always('{"reply": {"evidence": [1], "can_answer'), "read"),
    "replies with lists for words": Fault(always(json.dumps({"reply": LISTS})), "read"),
    "replies with nothing": Fault(always(""), "read"),
    "names what was not retrieved": Fault(wrong_ids, "read"),
    "refuses in prose": Fault(always("I am sorry, but I cannot help with that."), "read"),
}
WAYS = [("/check", "constrained"), ("/answer", "constrained"), ("/answer", "free")]


@pytest.fixture(scope="module")
def llm() -> Iterator[ScriptedLlm]:
    with ScriptedLlm() as llm:
        yield llm


@pytest.fixture(scope="module")
def services(llm: ScriptedLlm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, TestClient]]:
    """A service for each shape of an answer."""
    clients: dict[str, TestClient] = {}
    options: dict[str, Any] = {"llm_url": llm.url, "llm_retries": 1, "llm_deadline_ms": DEADLINE_S * 1000}
    with (
        running(tmp_path_factory.mktemp("data"), llm_shape="constrained", **options) as clients["constrained"],
        running(tmp_path_factory.mktemp("data"), llm_shape="free", **options) as clients["free"],
    ):
        for client in clients.values():
            assert client.post("/scopes/default/facts", json={"facts": FERRIES}).status_code == 201
        yield clients


def ask(
    client: TestClient,
    path: str,
    on_error: str = "refuse",
    mode: str = "enforce",
    deadline_s: float = DEADLINE_S,
    **more: Any,
) -> Any:
    """The response; it comes in time whatever the LLM does."""
    policy = {"gates": ["hard", "soft"], "on_error": on_error, "mode": mode}
    body = {"question": QUESTION, "policy": policy, "deadline_ms": deadline_s * 1000} | more
    started = time.monotonic()
    answer = client.post(path, json=body)
    assert time.monotonic() - started < deadline_s + 1
    return answer


def soft(told: dict[str, Any]) -> dict[str, Any]:
    verdict = told.get("verdict", told)
    gate: dict[str, Any] = next(gate for gate in verdict["gates"] if gate["gate"] == "soft")
    return gate


@pytest.fixture(params=WAYS, ids=["check", "answer as JSON", "answer as text"])
def way(request: pytest.FixtureRequest, services: dict[str, TestClient], llm: ScriptedLlm) -> tuple[TestClient, str]:
    """A client and a path, of a service whose LLM was well when it started, and no longer keeps to a schema."""
    llm.begin_again(SENSE)
    llm.json_schema = False
    path, shape = request.param
    return services[shape], path


def test_good_sense_passes(way: tuple[TestClient, str]) -> None:
    """Else the faults below would prove nothing."""
    told = ask(*way).json()
    assert told["decision"] in {"ANSWERABLE", "ANSWER"}
    assert (soft(told)["status"], soft(told)["passed"]) == ("ok", True)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_failure_is_refused_by_default(way: tuple[TestClient, str], llm: ScriptedLlm, fault: Fault) -> None:
    llm.script = fault.script
    response = ask(*way, deadline_s=fault.deadline_s)
    assert response.status_code == 200
    told = response.json()
    assert told["decision"] == "REFUSAL"
    assert told.get("answer") is None
    verdict = told.get("verdict", told)
    assert verdict["refused_by"] == "soft"
    assert soft(told)["status"] == fault.status
    assert fault.cause in soft(told)["detail"]["cause"]
    assert fault.cause in verdict["reason"]
    assert llm.url not in response.text
    until(lambda: all(asked.gone_at or asked.done_at for asked in llm.asked))


@pytest.mark.parametrize("name", ["hangs amid its reply", "breaks off", "is broken", "refuses in prose"])
def test_a_policy_may_answer_all_the_same(way: tuple[TestClient, str], llm: ScriptedLlm, name: str) -> None:
    llm.script = FAULTS[name].script
    told = ask(*way, on_error="answer", deadline_s=FAULTS[name].deadline_s).json()
    assert told["decision"] in {"ANSWERABLE", "ANSWER"}
    assert (soft(told)["passed"], soft(told)["status"]) == (True, FAULTS[name].status)
    if way[1] == "/answer":
        assert told["answer"] in [fact["text"] for fact in FERRIES], "a sentence of the evidence, and none of the LLM's"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_who_observes_never_refuses(way: tuple[TestClient, str], llm: ScriptedLlm, fault: Fault) -> None:
    llm.script = fault.script
    response = ask(*way, mode="observe", deadline_s=fault.deadline_s)
    assert response.status_code == 200, response.text
    told = response.json()
    assert told["decision"] in {"ANSWERABLE", "ANSWER"}
    assert told.get("verdict", told)["would_refuse"]
    assert fault.cause in soft(told)["detail"]["cause"]


@pytest.mark.parametrize("confusion", [["other"], {"other": 1}, 7, "unheard_of"])
@pytest.mark.parametrize(("mode", "decisions"), [("enforce", {"REFUSAL"}), ("observe", {"ANSWERABLE", "ANSWER"})])
def test_a_refusal_with_a_confusion_that_is_none_counts(
    way: tuple[TestClient, str], llm: ScriptedLlm, confusion: Any, mode: str, decisions: set[str]
) -> None:
    told = json.dumps(confusion)
    refusal = {"evidence": [], "can_answer": False, "confusion": confusion, "phrases": {"a": 1}, "explanation": [7]}
    llm.script = by_prompt(
        {
            "You judge": always(f"Confusion: {told}\nAnswerable: no"),
            "Reply with one JSON object": always(json.dumps({"reply": refusal})),
        },
        always(f"EVIDENCE: none\nCAN ANSWER: no\nCONFUSION: {told}\nPHRASES: ;;\nEXPLANATION: []"),
    )
    response = ask(*way, mode=mode)
    assert response.status_code == 200, response.text
    said = response.json()
    assert said["decision"] in decisions
    assert (soft(said)["status"], soft(said)["passed"]) == ("ok", False)
    assert said.get("verdict", said)["confusion"]["type"] == "not_mentioned"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/answer", {"question": QUESTION}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": QUESTION}], "model": "scopegate/default"}),
    ],
)
def test_halves_of_characters_are_marked(
    services: dict[str, TestClient], llm: ScriptedLlm, path: str, body: dict[str, Any], stream: bool
) -> None:
    """As of a server that cuts its text between the two halves of UTF-16."""
    llm.begin_again(always(f"EVIDENCE: 1\nCAN ANSWER: yes\nANSWER: {ANSWER} \ud83d [1]\nREASON: \ude00 It says so."))
    response = services["free"].post(path, json=body | {"stream": stream})
    assert response.status_code == 200, response.text
    assert "\ufffd" in response.text
    assert "event: error" not in response.text
    assert '"status":500' not in response.text


@pytest.mark.parametrize("name", ["hangs amid its reply", "breaks off", "is broken", "refuses in prose"])
def test_a_policy_may_fail(way: tuple[TestClient, str], llm: ScriptedLlm, name: str) -> None:
    llm.script = FAULTS[name].script
    response = ask(*way, on_error="fail", deadline_s=FAULTS[name].deadline_s)
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/problem+json"
    assert FAULTS[name].cause in response.json()["detail"]


@pytest.mark.parametrize("shape", ["constrained", "free"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_stream_never_ends_without_an_end(
    services: dict[str, TestClient], llm: ScriptedLlm, fault: Fault, shape: str
) -> None:
    """What fails before any text is a refusal; amid the text, an error. Never does a refusal follow text."""
    llm.begin_again(fault.script)
    llm.json_schema = False
    text = ask(services[shape], "/answer", deadline_s=fault.deadline_s, stream=True).text
    events = [event.partition("\n")[0].removeprefix("event: ") for event in text.split("\n\n") if event]
    assert events[-1] in {"refusal", "error"}
    assert set(events[:-1]) <= {"delta"}
    assert (events[-1] == "error") == (len(events) > 1)
    if events == ["refusal"]:
        assert fault.cause in text


@pytest.mark.parametrize(
    ("then", "cause"), [("cut", "broke the connection"), ("error", "amid its reply"), ("hang", "ran past the deadline")]
)
def test_a_stream_that_fails_amid_its_text_ends_with_the_error(
    services: dict[str, TestClient], llm: ScriptedLlm, then: str, cause: str
) -> None:
    llm.begin_again(sensibly(stops_after=12, then=then))
    text = ask(services["free"], "/answer", deadline_s=SHORT_S, stream=True).text
    events = [event for event in text.split("\n\n") if event]
    assert events[0].startswith("event: delta\n")
    assert events[-1].startswith("event: error\n")
    assert cause in events[-1]
    until(lambda: all(asked.gone_at or asked.done_at for asked in llm.asked))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_chat_refuses_too(services: dict[str, TestClient], llm: ScriptedLlm, fault: Fault) -> None:
    llm.begin_again(fault.script)
    body = {"messages": [{"role": "user", "content": QUESTION}], "model": "scopegate/default"}
    started = time.monotonic()
    response = services["free"].post("/v1/chat/completions", json=body)
    assert time.monotonic() - started < DEADLINE_S + 1
    assert response.status_code == 200, response.text
    said = response.json()
    assert said["choices"][0]["message"]["refusal"] == said["choices"][0]["message"]["content"] != ""
    assert fault.cause in soft(said["scopegate"])["detail"]["cause"]


def test_a_server_that_dies_and_comes_back(way: tuple[TestClient, str], llm: ScriptedLlm) -> None:
    client, _ = way
    llm.die()
    told = ask(*way).json()
    assert told["decision"] == "REFUSAL"
    assert "could not be reached" in soft(told)["detail"]["cause"]
    assert client.get("/readyz").status_code == 200, "the gates answer for an outage"
    llm.come_back()
    assert soft(ask(*way).json())["status"] == "ok"


def test_more_requests_than_there_is_room_for(services: dict[str, TestClient], llm: ScriptedLlm) -> None:
    """A server that hangs takes no more than the request's deadline from anyone, and leaves nothing behind."""
    llm.begin_again(always(Said(after_s=FOREVER)))
    for _ in range(3):
        assert ask(services["free"], "/check", deadline_s=SHORT_S).json()["decision"] == "REFUSAL"
    until(lambda: all(asked.gone_at for asked in llm.asked))
    llm.begin_again(SENSE)
    assert ask(services["free"], "/check").json()["decision"] == "ANSWERABLE"


def test_a_service_whose_llm_comes_later(tmp_path: Path, llm: ScriptedLlm) -> None:
    llm.begin_again(SENSE)
    llm.die()
    with TestClient(create_app(Settings(data_dir=tmp_path, llm_url=llm.url))) as client:
        until(lambda: client.get("/readyz").json()["detail"].startswith("the LLM"))
        client.post("/scopes/default/facts", json={"facts": FERRIES})
        told = ask(client, "/check").json()
        assert told["decision"] == "REFUSAL"
        assert "the LLM has not answered yet" in soft(told)["detail"]["cause"]
        llm.come_back()
        until(lambda: client.get("/readyz").status_code == 200)
        assert ask(client, "/check").json()["decision"] == "ANSWERABLE"
