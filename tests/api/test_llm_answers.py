"""Questions asked of a service that has an LLM, scripted behind the real protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.conftest import FERRIES, running
from tests.scripted import Asked, ScriptedLlm, by_prompt

KNOWN = "Which pier does the night ferry to Harwick leave from?"
PREMISE = "Why are bicycles banned on every ferry?"
SENTENCE = "It leaves from pier 4."

Ask = Callable[..., dict[str, Any]]


def answers(asked: Asked) -> str:
    """What a sensible LLM says to the answerer's prompts about FERRIES."""
    can = "bicycles" not in asked.user.lower().partition("<question>")[2]
    if "response_format" not in asked.body:
        if can:
            return f"EVIDENCE: 1\nCAN ANSWER: yes\nANSWER: {SENTENCE[:-1]} [1] [9].\nREASON: The first says so."
        return "EVIDENCE: none\nCAN ANSWER: no\nCONFUSION: false_premise\nPHRASES: bicycles banned"
    reply: dict[str, Any] = {"evidence": [1] if can else [], "can_answer": can}
    if can:
        reply |= {"answer": SENTENCE}
    else:
        reply |= {"confusion": "false_premise", "phrases": ["banned"], "explanation": "Bicycles travel free."}
    return json.dumps({"reply": reply | {"reasoning": "The first says so."}})


def judges(asked: Asked) -> str:
    return "The passages speak of ferries.\nAnswerable: yes"


def condenses(asked: Asked) -> str:
    return KNOWN


SCRIPT = by_prompt({"You answer questions": answers, "You judge whether": judges, "conversation": condenses})


@pytest.fixture(scope="module")
def llm() -> Iterator[ScriptedLlm]:
    with ScriptedLlm() as llm:
        yield llm


@pytest.fixture(scope="module", params=["constrained", "free"])
def client(
    request: pytest.FixtureRequest, llm: ScriptedLlm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    llm.begin_again(SCRIPT)
    data = tmp_path_factory.mktemp("data")
    with running(data, llm_url=llm.url, llm_shape=request.param) as client:
        assert client.post("/scopes/default/facts", json={"facts": FERRIES}).status_code == 201
        yield client


@pytest.fixture
def ask(client: TestClient, llm: ScriptedLlm) -> Ask:
    llm.begin_again(SCRIPT)

    def asked(path: str = "/answer", **body: Any) -> dict[str, Any]:
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    return asked


def test_an_answer_is_one_request_that_cites_what_was_retrieved(ask: Ask, llm: ScriptedLlm) -> None:
    answer = ask(question=KNOWN)
    assert answer["decision"] == "ANSWER"
    assert answer["answer"].startswith("It leaves from pier 4")
    assert "[9]" not in answer["answer"]
    assert [held["text"] for held in answer["evidence"]] == [FERRIES[0]["text"]]
    assert (answer["reason"], answer["model"]) == ("The first says so.", "scripted-1")
    assert [gate["gate"] for gate in answer["verdict"]["gates"]] == ["hard", "probe", "soft"]
    assert len(llm.asked) == 1


def test_what_the_llm_cannot_answer_is_refused_with_its_correction(ask: Ask) -> None:
    refused = ask(question=PREMISE, policy={"gates": ["hard", "soft"]})
    assert (refused["decision"], refused["answer"], refused["evidence"]) == ("REFUSAL", None, [])
    assert refused["verdict"]["refused_by"] == "soft"
    confusion = refused["verdict"]["confusion"]
    assert confusion["type"] == "false_premise"
    assert [PREMISE[span["start"] : span["end"]] for span in confusion["spans"]] == [
        span["text"] for span in confusion["spans"]
    ]
    if confusion["explanation"]:
        assert "Bicycles travel free." in refused["refusal"]


def test_what_an_earlier_gate_refuses_never_reaches_the_llm(ask: Ask, llm: ScriptedLlm) -> None:
    refused = ask(question="Who composed the opera about the clockmaker of Prague?")
    assert refused["verdict"]["refused_by"] == "hard"
    assert llm.asked == []


def test_a_check_asks_for_its_votes_in_one_request(ask: Ask, llm: ScriptedLlm) -> None:
    verdict = ask("/check", question=KNOWN, policy={"votes": 3})
    assert verdict["decision"] == "ANSWERABLE"
    soft = verdict["gates"][2]
    assert (soft["score"], soft["detail"]["yes"]) == (1.0, 3)
    assert [asked.body["n"] for asked in llm.asked] == [3]


def test_an_answer_with_votes_asks_the_judge_first(ask: Ask, llm: ScriptedLlm) -> None:
    assert ask(question=KNOWN, policy={"votes": 3})["decision"] == "ANSWER"
    assert sorted(asked.body.get("n", 1) for asked in llm.asked) == [1, 3]


def test_a_stream_is_the_answer_in_pieces(client: TestClient, ask: Ask) -> None:
    whole = ask(question=KNOWN)
    events = client.post("/answer", json={"question": KNOWN, "stream": True}).text.split("\n\n")
    deltas = [json.loads(event.partition("data: ")[2])["text"] for event in events if event.startswith("event: delta")]
    assert "".join(deltas) == whole["answer"]
    assert [event.split("\n")[0] for event in events if event][-1] == "event: answer"


def test_a_refusal_streams_no_text(client: TestClient, ask: Ask) -> None:
    ask(question=KNOWN)
    streamed = client.post(
        "/answer", json={"question": PREMISE, "stream": True, "policy": {"gates": ["hard", "soft"]}}
    ).text
    assert streamed.startswith("event: refusal\n")
    assert streamed.count("event: ") == 1


def test_a_follow_up_is_looked_up_as_a_question_of_its_own(ask: Ask, llm: ScriptedLlm) -> None:
    conversation = [
        {"role": "user", "content": "When does the night ferry to Harwick leave?"},
        {"role": "assistant", "content": "At a quarter past ten."},
        {"role": "user", "content": "And from which pier does it?"},
    ]
    answer = ask(messages=conversation)
    assert answer["decision"] == "ANSWER"
    assert answer["verdict"]["gates"][0]["detail"]["standalone_question"] == KNOWN
    assert len(llm.asked) == 2


@pytest.mark.parametrize("lenient", [{"on_error": "answer"}, {"mode": "observe"}])
def test_a_follow_up_that_cannot_be_condensed_is_looked_up_as_it_was_asked(
    ask: Ask, llm: ScriptedLlm, lenient: dict[str, str]
) -> None:
    llm.script = by_prompt({"conversation": lambda _: ""}, otherwise=SCRIPT)
    conversation = [
        {"role": "user", "content": "When does the night ferry to Harwick leave?"},
        {"role": "assistant", "content": "At a quarter past ten."},
        {"role": "user", "content": "And from which pier does it?"},
    ]
    answer = ask(messages=conversation, policy={"gates": ["soft"], **lenient})
    assert answer["decision"] == "ANSWER"
    assert sum("conversation" in asked.system for asked in llm.asked) == 1
    refused = ask(messages=conversation, policy={"gates": ["soft"]})
    assert refused["verdict"]["refused_by"] == "soft"
    assert "stand alone" in refused["verdict"]["gates"][0]["detail"]["cause"]


def test_passages_that_came_along_are_read_and_cited_by_sentence(ask: Ask) -> None:
    passages = [{"id": "p", "text": "The night ferry to Harwick leaves from pier 4. It has a bar."}]
    answer = ask(question=KNOWN, passages=passages)
    assert [held["id"] for held in answer["evidence"]] == ["p#1"]


def test_readiness_tells_what_the_server_can_do(client: TestClient) -> None:
    (told,) = client.get("/readyz").json()["llms"]
    assert told["roles"] == ["answerer", "judge", "generator"]
    assert told["model"] == "scripted-1"
    assert told["capabilities"]["json_schema"] is True
    assert told["capabilities"]["probe"] is False


def test_a_shell_asks_the_llm_too(llm: ScriptedLlm, tmp_path: Path) -> None:
    llm.begin_again(SCRIPT)

    def scopegate(*arguments: str) -> subprocess.CompletedProcess[str]:
        settings = {"SCOPEGATE_DATA_DIR": str(tmp_path), "SCOPEGATE_LLM_URL": llm.url, "COLUMNS": "200"}
        command = [sys.executable, "-m", "scopegate.cli", *arguments]
        return subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)

    assert scopegate("add", "--text", FERRIES[0]["text"]).returncode == 0
    answered = scopegate("answer", KNOWN)
    assert (answered.returncode, answered.stdout.splitlines()[0]) == (0, SENTENCE), answered.stderr
