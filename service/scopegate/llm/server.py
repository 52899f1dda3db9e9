"""An OpenAI-compatible server, spoken to through the openai library; every failure becomes one sentence.

The library sends, tries again and splits streams into events. Its types are left out: it builds them unchecked, for a
tenth of a millisecond each, so that reading a stream would cost more than all the rest of a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import httpx2
import numpy as np
import openai

from scopegate.domain import Speaker
from scopegate.llm.asks import Ask, LlmAway, LlmFailed, Piece, Reply, Usage

_PATH = "/chat/completions"
_CONNECT_S = 5.0
# Statuses that the same request may not get a moment later: too many requests, no room, and a proxy with nobody behind.
_PASSING = {429, 502, 503}
# A server that wants a longer wait than this has failed the request at hand.
_PATIENCE_S = 10.0
# A logprob above zero, or none at all, is no logprob.
_ROUNDING = 1e-3
# What no option of a caller takes the place of.
_OURS = {"model", "messages", "stream", "stream_options", "max_completion_tokens"}


class Server:
    """A server's chat completions.

    Failed connections, replies that break off before anything was read, 429, 502 and 503 are tried again, at most
    `retries` times, after jittered and growing waits or after what Retry-After says. Nothing outlasts timeout_s, a
    stream not either. Leaving a stream, or cancelling a request, closes its connection, and so tells the server.
    modern: it takes max_completion_tokens, and no temperature, as hosted models that reason do.
    """

    def __init__(self, url: str, key: str | None, *, connections: int, retries: int, timeout_s: float) -> None:
        self.modern = False
        self._timeout_s = timeout_s
        self._root = url.rstrip("/").removesuffix("/v1")
        # Without these, the library would send what OPENAI_* variables hold, which is meant for another server.
        omit: Any = openai.Omit()
        headers = {
            "Authorization": f"Bearer {key or 'none'}",
            "OpenAI-Organization": omit,
            "OpenAI-Project": omit,
        }
        self._client = openai.AsyncOpenAI(
            base_url=url,
            api_key=key or "none",
            max_retries=retries,
            default_headers=headers,
            http_client=httpx2.AsyncClient(
                timeout=httpx2.Timeout(None, connect=_CONNECT_S),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=connections),
                event_hooks={"response": [_mark_what_passes]},
            ),
        )

    async def complete(self, model: str, ask: Ask) -> Reply:
        """The whole reply. Raises LlmFailed."""
        async with _within(self._timeout_s):
            with _failures():
                body = await self._client.post(_PATH, cast_to=object, body=_request(model, ask, self.modern))
        with _reading():
            return _reply(body)

    @asynccontextmanager
    async def stream(self, model: str, ask: Ask) -> AsyncIterator[AsyncIterator[Piece]]:
        """The reply as it comes; leaving the context cancels what is left of it. Raises LlmFailed, from within too."""
        async with _within(self._timeout_s):
            with _failures():
                chunks = await self._client.post(
                    _PATH,
                    cast_to=object,
                    body=_request(model, ask, self.modern)
                    | {"stream": True, "stream_options": {"include_usage": True}},
                    stream=True,
                    stream_cls=openai.AsyncStream[object],
                )
            try:
                async with aclosing(_pieces(chunks)) as pieces:
                    yield pieces
            finally:
                await chunks.close()

    async def first_model(self) -> str:
        """The first model that it lists. Raises LlmFailed."""
        async with _within(self._timeout_s):
            with _failures():
                listed = await self._client.models.list()
        with _reading():
            return str(listed.data[0].id)

    async def token_ids(self, model: str, text: str) -> tuple[int, ...]:
        """The text's tokens, from a server that has vLLM's /tokenize. Raises LlmFailed."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        async with _within(self._timeout_s):
            with _failures():
                said: Any = await self._client.post(f"{self._root}/tokenize", cast_to=object, body=body)
        with _reading():
            return tuple(int(token) for token in said["tokens"])

    async def close(self) -> None:
        """Closes its connections."""
        await self._client.close()


def _request(model: str, ask: Ask, modern: bool) -> dict[str, Any]:
    turns = [{"role": str(turn.role), "content": turn.content} for turn in ask.turns]
    options = {name: value for name, value in ask.options.items() if name not in _OURS}
    body: dict[str, Any] = {"temperature": ask.temperature, **options, "max_tokens": ask.max_tokens}
    if modern:
        del body["temperature"]
        body["max_completion_tokens"] = body.pop("max_tokens")
    if ask.n > 1:
        body["n"] = ask.n
    if ask.schema is not None:
        shape = {"name": "reply", "schema": dict(ask.schema), "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": shape}
    if ask.token_ids:
        body |= {"logprobs": True, "logprob_token_ids": list(ask.token_ids), "return_tokens_as_token_ids": True}
    elif ask.top_logprobs:
        body |= {"logprobs": True, "top_logprobs": ask.top_logprobs}
    if ask.prefill is not None:
        turns.append({"role": Speaker.ASSISTANT.value, "content": ask.prefill})
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body | {"model": model, "messages": turns}


async def _mark_what_passes(response: httpx2.Response) -> None:
    """Tells the openai library what to try again; by itself it would also try 408, 409 and every 5xx."""
    if response.is_success:
        return
    passes = response.status_code in _PASSING and _seconds(response.headers.get("retry-after")) <= _PATIENCE_S
    response.headers["x-should-retry"] = "true" if passes else "false"


def _seconds(retry_after: str | None) -> float:
    """Zero where it is a date: the library waits for that."""
    try:
        return float(retry_after or 0)
    except ValueError:
        return 0.0


@asynccontextmanager
async def _within(seconds: float) -> AsyncIterator[None]:
    cap = asyncio.timeout(seconds)
    try:
        async with cap:
            yield
    except TimeoutError:
        if cap.expired():
            raise LlmAway("the LLM did not answer in time") from None
        raise


@contextmanager
def _failures() -> Iterator[None]:
    """Turns what the openai library raises into LlmFailed, without the server's own words: they may quote a key."""
    try:
        yield
    except openai.APIStatusError as error:
        kind = LlmAway if error.status_code in _PASSING else LlmFailed
        raise kind(f"the LLM server answered with status {error.status_code}") from None
    except openai.APITimeoutError:
        raise LlmAway("the LLM server could not be reached in time") from None
    except openai.APIConnectionError:
        raise LlmAway("the LLM server could not be reached, or broke the connection") from None
    except openai.APIError:
        raise LlmFailed("the LLM server reported an error amid its reply") from None
    except (openai.OpenAIError, ValueError, RecursionError):
        raise LlmFailed("the LLM server's answer is no JSON") from None


@contextmanager
def _reading() -> Iterator[None]:
    """What a server sends may lack any field, or have it of any type."""
    try:
        yield
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        raise LlmFailed("the LLM server's answer is not of the protocol, or is empty") from None


def _reply(body: Any) -> Reply:
    choices = body["choices"]
    return Reply(
        tuple(_text(choice["message"]) for choice in choices),
        tuple(choice.get("finish_reason") == "length" for choice in choices),
        _first(choices[0]),
        _usage(body),
    )


async def _pieces(chunks: openai.AsyncStream[object]) -> AsyncGenerator[Piece]:
    """Raises LlmFailed where the stream breaks off, or ends before it is complete."""
    begun = finished = False
    while True:
        with _failures():
            chunk = await anext(chunks, None)
        if chunk is None:
            break
        with _reading():
            piece, ends = _piece(chunk, begun)
        finished = finished or ends
        begun = begun or bool(piece.first)
        if piece.text or piece.first or piece.cut or piece.usage:
            yield piece
    if not finished:
        raise LlmFailed("the LLM's stream ended before its reply was complete")


def _piece(chunk: Any, begun: bool) -> tuple[Piece, bool]:
    """A chunk's piece of the first reply, and whether that ends with it. begun: the first token came before."""
    for choice in chunk["choices"]:
        if choice["index"] == 0:
            ends = choice.get("finish_reason")
            first = {} if begun else _first(choice)
            return Piece(_text(choice["delta"]), first, ends == "length", _usage(chunk)), ends is not None
    return Piece("", {}, False, _usage(chunk)), False


def _text(message: Any) -> str:
    """A message's text, or the words with which the model declines."""
    text = message.get("content") or message.get("refusal") or ""
    if not isinstance(text, str):
        raise TypeError
    return text


def _first(choice: Any) -> Mapping[str, float]:
    """The first token's logprobs; tokens that are written alike count as one, with the sum of their probabilities."""
    logprobs = choice.get("logprobs")
    if not logprobs or not logprobs.get("content"):
        return {}
    first: dict[str, float] = {}
    for top in logprobs["content"][0].get("top_logprobs") or ():
        token, logprob = str(top["token"]), float(top["logprob"])
        if not logprob <= _ROUNDING:
            raise ValueError
        first[token] = float(np.logaddexp(first.get(token, -np.inf), logprob))
    return first


def _usage(body: Any) -> Usage | None:
    usage = body.get("usage")
    if usage is None:
        return None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Usage(int(usage["prompt_tokens"]), int(usage["completion_tokens"]), cached)
