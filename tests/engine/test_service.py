"""The whole service on a real engine: what it makes of a model that writes garbage, and of the probe inside it."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from scopegate import services as wiring
from scopegate.prompts import load_prompt, prompt_at
from tests.conftest import FERRIES, running
from tests.engine import models, probes
from tests.engine.engine import Engine
from tests.engine.served import Served
from tests.scripted import until

DEADLINE_S = 3.0
BUSY_S = 9.0  # what a machine may add whose every core the engine keeps busy
CLOSE = 1e-3
A_FEW = 16
BLOCK = 128  # tokens: what vLLM on a CPU caches prefixes by
PROMPTS = {"free": prompt_at("answer_text/basic"), "constrained": prompt_at("answer_json/basic")}
JUDGING = {"free": "fast", "constrained": "reasoning"}
QUESTIONS = (
    "Which pier does the night ferry to Harwick leave from?",
    "How long does the crossing to Harwick take?",
    "What does a bicycle cost on the ferry?",
)
ALONE = [{"role": "user", "content": QUESTIONS[0]}]
FOLLOWING = [
    {"role": "user", "content": "Tell me about the night ferry to Harwick."},
    {"role": "assistant", "content": "It leaves at a quarter past ten."},
    {"role": "user", "content": "And how long does it take?"},
]
# What may be wrong with a model that knows nothing. That the engine refused what it was asked is not among it.
CAUSES = (
    "ran past the deadline",
    "could not be read",
    "cut at the request's limit",
    "votes can be read",
    "neither yes nor no",
    "make the question stand alone",
)
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Told:
    """The last that came: an answer, a verdict or a problem. text: what a stream showed before it."""

    body: dict[str, Any]
    text: str = ""

    @property
    def verdict(self) -> dict[str, Any]:
        verdict: dict[str, Any] = self.body.get("verdict", self.body)
        return verdict

    def gate(self, name: str) -> dict[str, Any]:
        gate: dict[str, Any] = next(gate for gate in self.verdict["gates"] if gate["gate"] == name)
        return gate


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A tiny model whose tokenizer knows the prompts' words, so that they fit into it."""
    folder = tmp_path_factory.mktemp("service")
    asked = [*PROMPTS.values(), *map(load_prompt, ("judge", "answerable", "condense"))]
    turns = [turn for prompt in asked for turn in prompt.render(**dict.fromkeys(prompt.variables, ""))]
    texts = [*(turn.content for turn in turns), *(fact["text"] for fact in FERRIES), *QUESTIONS]
    model = models.make(folder / "model", "llama", texts=texts * 20)
    file = probes.make(folder / "probe.safetensors", model, prompt=PROMPTS["free"].id)
    with Engine(model.path, file.path, "--max-model-len", "4096", VLLM_SERVER_DEV_MODE="1") as engine:
        yield Served(engine, model, file)


@pytest.fixture(scope="module")
def services(engine: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, TestClient]]:
    """One for each shape of an answer, each with the probe as if it were trained on the prompt of that shape."""
    clients: dict[str, TestClient] = {}
    with contextlib.ExitStack() as stack:
        for shape, prompt in PROMPTS.items():
            # A file of its own would have another fingerprint, and so need another engine.
            file = replace(engine.file, description=replace(engine.file.description, prompt=prompt.id))
            settings = {"llm_url": f"{engine.engine.url}/v1", "llm_shape": shape, "llm_judging": JUDGING[shape]}
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(wiring, "_probe_file", lambda _, file=file: file)
                client = stack.enter_context(running(tmp_path_factory.mktemp("data"), **settings))
            assert client.post("/scopes/default/facts", json={"facts": FERRIES}).status_code == 201
            clients[shape] = client
        yield clients


def ask(client: TestClient, path: str, *turns: dict[str, str], deadline_s: float = DEADLINE_S, **more: Any) -> Told:
    """Asks. more: of the body. Raises AssertionError where it takes too long, or the status is not 200."""
    body: dict[str, Any] = {"messages": turns, "deadline_ms": deadline_s * 1000, **more}
    if path == CHAT:
        terms = {name: body.pop(name) for name in ("policy", "deadline_ms")}
        body |= {"model": "scopegate/default", "scopegate": terms}
    started = time.monotonic()
    response = client.post(path, json=body)
    assert time.monotonic() - started < deadline_s + BUSY_S
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        told = response.json()
        return Told(told["scopegate"] if path == CHAT else told)
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(each) for each in data if each != "[DONE]"]
    if path != CHAT:
        return Told(events[-1], "".join(event["text"] for event in events[:-1]))
    said = [choice["delta"] for event in events for choice in event.get("choices", ())]
    text = "".join(delta.get("content") or "" for delta in said if not delta.get("refusal"))
    return Told(events[-1].get("scopegate", events[-1]), text)


WAYS: dict[str, tuple[str, list[dict[str, str]], dict[str, Any]]] = {
    "check": ("/check", ALONE, {}),
    "check a conversation": ("/check", FOLLOWING, {}),
    "answer": ("/answer", ALONE, {}),
    "answer, streamed": ("/answer", ALONE, {"stream": True}),
    "answer a conversation": ("/answer", FOLLOWING, {}),
    "chat": (CHAT, ALONE, {}),
    "chat, streamed": (CHAT, ALONE, {"stream": True}),
    "chat on": (CHAT, FOLLOWING, {"stream": True}),
    "chat briefly": (CHAT, ALONE, {"max_tokens": 1}),
}


@pytest.mark.parametrize("on_error", ["refuse", "answer"])
@pytest.mark.parametrize("shape", PROMPTS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_garbage_ends_in_the_policys_decision_in_time(
    services: dict[str, TestClient], way: tuple[str, list[dict[str, str]], dict[str, Any]], shape: str, on_error: str
) -> None:
    path, turns, more = way
    policy = {"gates": ["hard", "soft"], "alpha": 10, "on_error": on_error}
    told = ask(services[shape], path, *turns, policy=policy, **more)
    broken = [gate for gate in told.verdict["gates"] if gate["status"] in {"error", "deadline"}]
    assert broken
    assert all(gate["passed"] == (on_error == "answer") for gate in broken)
    assert all(any(cause in gate["detail"]["cause"] for cause in CAUSES) for gate in broken), broken
    if on_error == "refuse":
        assert told.body["decision"] == "REFUSAL"
        assert broken[0]["detail"]["cause"] in told.verdict["reason"]
        assert told.text == ""
    elif path == "/check":
        assert told.body["decision"] == "ANSWERABLE"
    else:
        assert told.body["decision"] == "ANSWER"
        assert told.body["answer"] in [fact["text"] for fact in FERRIES], "a sentence of the evidence"


def expected(engine: Served, shape: str, told: Told, question: str) -> tuple[float, int]:
    """The probe's logit on transformers' hidden state of the prompt that was sent, and how many tokens that has."""
    turns = PROMPTS[shape].render(question=question, passages=[fact["text"] for fact in told.verdict["evidence"]])
    ids = engine.model.chat(*turns)
    return engine.expected(ids), len(ids)


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


def asked(question: str) -> dict[str, str]:
    return {"role": "user", "content": question}


class Used:
    """What an engine did while the context lasted, until nothing runs in it: by the names of its own metrics."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before: dict[str, float] = {}
        self.queries = self.hits = self.generated = 0.0

    def __enter__(self) -> Used:
        self._idle()
        self._before = self._engine.metrics()
        return self

    def __exit__(self, *_: object) -> None:
        self._idle()
        after = self._engine.metrics()
        self.queries, self.hits, self.generated = (
            after[f"vllm:{name}_total"] - self._before[f"vllm:{name}_total"]
            for name in ("prefix_cache_queries", "prefix_cache_hits", "generation_tokens")
        )

    def _idle(self) -> None:
        until(lambda: not self._engine.metrics()["vllm:num_requests_running"])


@pytest.mark.parametrize("shape", PROMPTS)
def test_the_verdict_has_the_probe_on_transformers_hidden_state(
    services: dict[str, TestClient], engine: Served, shape: str
) -> None:
    said = []
    for question in QUESTIONS:
        told = ask(services[shape], "/check", asked(question), policy={"gates": ["probe"], "probe_threshold": 0.0})
        assert told.gate("probe")["passed"]
        wanted, _ = expected(engine, shape, told, question)
        assert logit(told.gate("probe")["score"]) == pytest.approx(wanted, abs=CLOSE)
        said.append(wanted)
    assert max(said) - min(said) > 10 * CLOSE, "else the equality would be one of constants"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "shape"), [("/answer", "free"), ("/answer", "constrained"), (CHAT, "free")])
def test_what_the_probe_refuses_is_not_written(
    services: dict[str, TestClient], engine: Served, path: str, shape: str, stream: bool
) -> None:
    """In the free shape it is begun, and broken off; under a schema not even that."""
    told, used = {}, {}
    for threshold in (0.0, 1.0):
        policy = {"gates": ["probe"], "probe_threshold": threshold}
        with Used(engine.engine) as used[threshold]:
            told[threshold] = ask(services[shape], path, *ALONE, policy=policy, stream=stream)
    passed, refused = told[0.0], told[1.0]
    assert passed.gate("probe")["passed"]
    wanted, _ = expected(engine, shape, passed, QUESTIONS[0])
    for each in (passed, refused):
        assert logit(each.gate("probe")["score"]) == pytest.approx(wanted, abs=CLOSE)
    assert refused.body["decision"] == "REFUSAL"
    assert refused.verdict["refused_by"] == "probe"
    assert refused.gate("soft")["status"] == "skipped"
    assert refused.text == ""
    # How long a reply is under a schema is for the random model to say.
    least = A_FEW if shape == "constrained" else 4 * A_FEW
    assert used[0.0].generated > least, "what the same question costs where the probe lets it pass"
    assert used[1.0].generated <= (1 if shape == "constrained" else A_FEW), "before leaving reaches the engine"


def test_under_a_schema_probe_and_answer_compute_the_prompt_once(
    services: dict[str, TestClient], engine: Served
) -> None:
    httpx.post(f"{engine.engine.url}/reset_prefix_cache").raise_for_status()
    with Used(engine.engine) as used:
        told = ask(services["constrained"], "/answer", *ALONE, policy={"gates": ["probe"], "probe_threshold": 0.0})
    assert told.gate("probe")["status"] == "ok"
    _, length = expected(engine, "constrained", told, QUESTIONS[0])
    assert used.queries == 2 * length
    assert length - BLOCK <= used.hits < length
