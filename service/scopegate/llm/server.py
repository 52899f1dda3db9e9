"""An OpenAI-compatible server, spoken to through the openai library; every failure becomes one sentence.

The library sends, and splits streams into events. Its types are left out: it builds them unchecked, for a tenth of a
millisecond each, so that reading a stream would cost more than all the rest of a request. So are its retries: they know
no caller's deadline, and forget why they wait.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
import numpy as np
import openai

from scopegate.domain import Speaker
from scopegate.llm.asks import Ask, LlmAway, LlmBroke, LlmDenied, LlmFailed, LlmRefused, Piece, Reply, Usage, left_s

_PATH = "/chat/completions"
_CONNECT_S = 5.0
# Statuses that the same request may not get a moment later: too many requests, no room, and a proxy with nobody behind.
_PASSING = {429, 502, 503}
_REFUSING = {400, 422}
_DENYING = {401, 402, 403, 404, 405}
# A server that wants a longer wait than this has failed the request at hand.
_PATIENCE_S = 10.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 8.0
# Far beyond any reply that would be read; without it, only time bounds what a broken server sends.
_MOST_BYTES = 8 << 20
# No count of tokens comes near it, and JSON holds it.
_MOST_TOKENS = 1 << 53
# A logprob above zero, or none at all, is no logprob.
_ROUNDING = 1e-3
# What no option of a caller takes the place of.
_OURS = {"model", "messages", "stream", "stream_options", "max_completion_tokens"}


class Server:
    """A server's chat completions.

    Failed connections, replies that break off before anything was read, 429, 502 and 503 are tried again, at most
    `retries` times, after jittered and growing waits or after what Retry-After says. A wait that would outlast the
    caller's deadline is not begun: the failure is told at once. Nothing outlasts timeout_s, a stream not either.
    Leaving a stream, or cancelling a request, closes its connection, and so tells the server.
    modern: it takes max_completion_tokens, and no temperature, as hosted models that reason do.
    """

    def __init__(self, url: str, key: str | None, *, connections: int, retries: int, timeout_s: float) -> None:
        self.modern = False
        self._retries = retries
        self._timeout_s = timeout_s
        self._root = url.rstrip("/").removesuffix("/v1")
        # Without these, the library would send what OPENAI_* variables hold, which is meant for another server.
        omit: Any = openai.Omit()
        headers = {
            "Authorization": f"Bearer {key or 'none'}",
            "OpenAI-Organization": omit,
            "OpenAI-Project": omit,
            # Else a few bytes may become any number of them.
            "Accept-Encoding": "identity",
        }
        self._client = openai.AsyncOpenAI(
            base_url=url,
            api_key=key or "none",
            max_retries=0,
            default_headers=headers,
            http_client=httpx2.AsyncClient(
                timeout=httpx2.Timeout(None, connect=_CONNECT_S),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=connections),
                event_hooks={"response": [_bound]},
            ),
        )

    async def complete(self, model: str, ask: Ask) -> Reply:
        """The whole reply. Raises LlmFailed."""
        body = await self._whole(_PATH, _request(model, ask, self.modern))
        with _reading():
            return _reply(body, ask.n)

    @asynccontextmanager
    async def stream(self, model: str, ask: Ask) -> AsyncIterator[AsyncIterator[Piece]]:
        """The reply as it comes; leaving the context cancels what is left of it. Raises LlmFailed, from within too."""
        body = _request(model, ask, self.modern) | {"stream": True, "stream_options": {"include_usage": True}}
        async with _within(self._timeout_s):
            chunks = await self._tried(
                lambda: self._client.post(
                    _PATH, cast_to=object, body=body, stream=True, stream_cls=openai.AsyncStream[object]
                )
            )
            try:
                async with aclosing(_pieces(chunks)) as pieces:
                    yield pieces
            finally:
                await chunks.close()

    async def first_model(self) -> str:
        """The first model that it lists. Raises LlmFailed."""
        async with _within(self._timeout_s):
            listed = await self._tried(lambda: self._client.get("/models", cast_to=object))
        with _reading():
            return _valid(listed["data"][0]["id"])

    async def token_ids(self, model: str, text: str) -> tuple[int, ...]:
        """The text's tokens, from a server that has vLLM's /tokenize. Raises LlmFailed."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        said = await self._whole(f"{self._root}/tokenize", body)
        with _reading():
            return tuple(int(token) for token in said["tokens"])

    async def close(self) -> None:
        """Closes its connections."""
        await self._client.close()

    async def _whole(self, path: str, body: Mapping[str, Any]) -> Any:
        async with _within(self._timeout_s):
            return await self._tried(lambda: self._client.post(path, cast_to=object, body=body))

    async def _tried(self, send: Callable[[], Awaitable[Any]]) -> Any:
        """What comes of sending, as often as it takes. Raises LlmFailed."""
        for tries in itertools.count():
            try:
                with _failures():
                    return await send()
            except LlmAway as failure:
                wait_s = failure.wait_s
                if wait_s is None:
                    grown_s = min(_FIRST_WAIT_S * 2**tries, _LONGEST_WAIT_S)
                    wait_s = grown_s * random.uniform(0.75, 1)  # noqa: S311 - only spreads the load
                if tries >= self._retries or not wait_s < min(_PATIENCE_S, left_s()):
                    raise
            await asyncio.sleep(wait_s)
        raise AssertionError("endless")


def _request(model: str, ask: Ask, modern: bool) -> dict[str, Any]:
    turns = [{"role": str(turn.role), "content": turn.content} for turn in ask.turns]
    options = {name: value for name, value in ask.options.items() if name not in _OURS}
    body: dict[str, Any] = {"temperature": ask.temperature, **options, "max_tokens": ask.max_tokens}
    if modern:
        del body["temperature"]
        body["max_completion_tokens"] = body.pop("max_tokens")
    if ask.n > 1:
        body["n"] = ask.n
    if ask.seed is not None:
        body["seed"] = ask.seed
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


async def _bound(response: httpx2.Response) -> None:
    """Raises LlmFailed by the status alone: a failure's body may be of any length, break off, or quote a key."""
    if response.is_success:
        response.stream = _Bounded(response.stream)
        return
    sentence = f"the LLM server answered with status {response.status_code}"
    if response.status_code in _PASSING:
        raise LlmAway(sentence, _wait_s(response.headers.get("retry-after")))
    if response.status_code >= 500:
        raise LlmBroke(sentence)
    if response.status_code in _DENYING:
        raise LlmDenied(sentence)
    raise LlmRefused(sentence) if response.status_code in _REFUSING else LlmFailed(sentence)


class _Bounded(httpx2.AsyncByteStream):
    """A response's body. Raises LlmFailed beyond _MOST_BYTES."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left = _MOST_BYTES

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._left -= len(chunk)
            if self._left < 0:
                raise LlmFailed("the LLM server's answer does not end")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _wait_s(retry_after: str | None) -> float | None:
    """Seconds that the server wants waited, None where it does not say."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        return None


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
    """Turns what the libraries raise into LlmFailed, without the server's own words: they may quote a key."""
    try:
        yield
    except openai.APITimeoutError:
        raise LlmAway("the LLM server could not be reached in time") from None
    except (openai.APIConnectionError, httpx2.HTTPError):
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
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise LlmFailed("the LLM server's answer is not of the protocol, or is empty") from None


def _reply(body: Any, n: int) -> Reply:
    choices = body["choices"][:n]
    return Reply(
        tuple(_valid(_said(choice["message"])) for choice in choices),
        tuple(choice.get("finish_reason") == "length" for choice in choices),
        _first(choices[0]),
        _usage(body),
    )


async def _pieces(chunks: openai.AsyncStream[object]) -> AsyncGenerator[Piece]:
    """Raises LlmFailed where the stream breaks off, or ends before it is complete."""
    begun = finished = False
    half = ""
    while True:
        with _failures():
            chunk = await anext(chunks, None)
        if chunk is None:
            break
        with _reading():
            piece, ends = _piece(chunk, begun)
        finished = finished or ends
        begun = begun or bool(piece.first)
        text = half + piece.text
        # A character beyond the 16-bit range may come in two pieces, half of its UTF-16 in each.
        half = text[-1:] if "\ud800" <= text[-1:] < "\udc00" and not ends else ""
        piece = replace(piece, text=_valid(text.removesuffix(half)))
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
            return Piece(_said(choice["delta"]), first, ends == "length", _usage(chunk)), ends is not None
    return Piece("", {}, False, _usage(chunk)), False


def _said(message: Any) -> str:
    """A message's text, or the words with which the model declines; JSON lets halves of characters through."""
    text = message.get("content") or message.get("refusal") or ""
    if not isinstance(text, str):
        raise TypeError
    return text


def _valid(text: str) -> str:
    """The text with halves of a character joined, and a mark in place of a half alone."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
    prompt, completion = _count(usage["prompt_tokens"]), _count(usage["completion_tokens"])
    return Usage(prompt, completion, None if cached is None else _count(cached))


def _count(tokens: Any) -> int:
    count = int(tokens)
    if not 0 <= count < _MOST_TOKENS:
        raise ValueError
    return count
