"""What an LLM is asked, and what it says."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from scopegate.domain import Turn

_TOKEN_ID = "token_id:"  # noqa: S105 - how vLLM names a token that it is asked to name by id
_MOST_DIGITS = 9

_END: ContextVar[float] = ContextVar("end", default=math.inf)


class LlmFailed(Exception):
    """The LLM gave no usable reply; says why in one sentence that tells nothing of where it runs."""


class LlmRefused(LlmFailed):
    """Its server does not take the request as it is, and would not another time."""


class LlmDenied(LlmFailed):
    """Its server takes nothing of what we send there: the key, the model or the URL's path is wrong."""


class LlmAway(LlmFailed):
    """Its server cannot be reached, is late, or has no room: the same request may pass another time.

    wait_s: after so many seconds, where the server says so.
    """

    def __init__(self, sentence: str, wait_s: float | None = None) -> None:
        super().__init__(sentence)
        self.wait_s = wait_s


class LlmBroke(LlmFailed):
    """Its server failed at the request, and says that the fault is its own."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to an LLM.

    n: replies, sampled from one prefill. schema: a JSON schema that decoding is held to. token_ids: tokens whose
    logprobs are wanted at every position; top_logprobs: or the most likely ones, 0 to 20. prefill: what the reply
    begins with, read and not generated. seed: of its random choices, where the server heeds it. options: further
    fields of the protocol, as a client of ours sent them; they take the place of temperature, and of nothing else that
    is set here.
    """

    turns: tuple[Turn, ...]
    max_tokens: int
    temperature: float = 0.0
    n: int = 1
    schema: Mapping[str, Any] | None = None
    token_ids: tuple[int, ...] = ()
    top_logprobs: int = 0
    prefill: str | None = None
    seed: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a request took; cached: those of the prompt that were not computed again, None where unknown."""

    prompt: int
    completion: int
    cached: int | None


@dataclass(frozen=True, slots=True)
class Reply:
    """What the LLM said. texts, cut: one for each of n; cut says that it ended at max_tokens.

    first: the first token's logprobs in the first text, by token, as asked for.
    """

    texts: tuple[str, ...]
    cut: tuple[bool, ...]
    first: Mapping[str, float]
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a streamed reply; first: the first token's logprobs, in the one piece that carries them."""

    text: str
    first: Mapping[str, float]
    cut: bool
    usage: Usage | None


@contextmanager
def ending(end: float) -> Iterator[None]:
    """Tells requests in this context, and in tasks begun here, when nobody waits for them any more: on the monotonic
    clock, in seconds. It cancels nothing.
    """
    before = _END.set(end)
    try:
        yield
    finally:
        _END.reset(before)


def left_s() -> float:
    """Seconds that are left for a request; see ending."""
    return _END.get() - time.perf_counter()


def by_id(first: Mapping[str, float]) -> dict[int, float]:
    """Logprobs by token id, of those that are named by id."""
    named = {token.removeprefix(_TOKEN_ID): logprob for token, logprob in first.items() if token.startswith(_TOKEN_ID)}
    return {int(token): logprob for token, logprob in named.items() if token.isdecimal() and len(token) <= _MOST_DIGITS}
