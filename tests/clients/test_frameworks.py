"""LangChain's and LlamaIndex's OpenAI classes, pointed at a running service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.clients.conftest import ANSWER

Through = Callable[[str], dict[str, Any]]


def test_langchain(through: Through) -> None:
    told = through("through_langchain.py")
    for name in ("answer", "conversation", "by_scope", "stream"):
        assert (told[name]["content"], told[name]["refusal"]) == (ANSWER, None), name
        assert told[name]["finish_reason"] == "stop"
    assert told["answer"]["usage"]["total_tokens"] > 100
    assert told["stream"]["usage"]["total_tokens"] > 100
    assert told["stream"]["pieces"] >= 1
    assert "opera" in told["refusal"]["content"]
    assert told["refusal"]["refusal"] == told["refusal"]["content"]
    assert "".join(told["refusal_stream"]) == told["refusal"]["content"]
    assert told["unknown_scope"] == 404
    assert told["wrong_key"] == 401


def test_llama_index(through: Through) -> None:
    told = through("through_llama_index.py")
    assert {"content": ANSWER, "decision": "ANSWER"}.items() <= told["answer"].items()
    assert told["answer"]["usage"]["total_tokens"] > 100
    assert told["by_scope"]["content"] == told["complete"] == "".join(told["stream"]) == ANSWER
    assert told["refusal"]["decision"] == "REFUSAL"
    assert "opera" in told["refusal"]["content"]
    assert "".join(told["refusal_stream"]) == told["refusal"]["content"]
    assert told["unknown_scope"] == 404
    assert told["wrong_key"] == 401
