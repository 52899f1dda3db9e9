"""One LLM behind an OpenAI-compatible server: asked with turns, answers with texts, or with a stream of pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as ChunkLogprobs

from scopegate.domain import Overloaded, Speaker, Turn

_TOKEN_ID = "token_id:"  # noqa: S105 - how vLLM names a token that it is asked to name by id


class LlmFailed(Exception):
    """The LLM gave no usable reply; says why in one sentence that tells nothing of where it runs."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to an LLM.

    n: replies, sampled from one prefill. schema: a JSON schema that decoding is held to. token_ids: tokens whose
    logprobs are wanted at every position; top_logprobs: or the most likely ones, 0 to 20. prefill: what the reply
    begins with, read and not generated. options: further fields of the protocol, as a client of ours sent them.
    """

    turns: tuple[Turn, ...]
    max_tokens: int
    temperature: float = 0.0
    n: int = 1
    schema: Mapping[str, Any] | None = None
    token_ids: tuple[int, ...] = ()
    top_logprobs: int = 0
    prefill: str | None = None
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
    """A piece of a streamed reply; first: the first token's logprobs, in the piece that carries them."""

    text: str
    first: Mapping[str, float]
    cut: bool
    usage: Usage | None


def by_id(first: Mapping[str, float]) -> dict[int, float]:
    """Logprobs by token id, of those that are named by id."""
    return {
        int(token.removeprefix(_TOKEN_ID)): logprob for token, logprob in first.items() if token.startswith(_TOKEN_ID)
    }


class Llm:
    """A model on a server.

    Connection errors, timeouts, 429 and 5xx are tried again by the openai client: at most `retries` times, with
    growing, jittered waits, or after what Retry-After says. The caller's own deadline cuts all of it short, and the
    server is told by the closed connection.
    """

    def __init__(self, url: str, model: str | None, key: str | None, *, concurrency: int, queue: int, retries: int):
        self.model = model
        self._client = openai.AsyncOpenAI(base_url=url, api_key=key or "none", max_retries=retries)
        self._permits = asyncio.Semaphore(concurrency)
        self._waiting = 0
        self._queue = queue

    async def complete(self, ask: Ask) -> Reply:
        """The whole reply. Raises LlmFailed, or Overloaded where too many requests wait already."""
        async with self._permit(), _failures():
            body = await self._client.chat.completions.create(**await self._request(ask))
            return _reply(body)

    @asynccontextmanager
    async def stream(self, ask: Ask) -> AsyncIterator[AsyncIterator[Piece]]:
        """The reply as it comes; leaving the context cancels what is left of it. Raises what complete raises."""
        async with self._permit():
            async with _failures():
                chunks = await self._client.chat.completions.create(
                    **await self._request(ask), stream=True, stream_options={"include_usage": True}
                )
            try:
                yield _pieces(chunks)
            finally:
                await chunks.close()

    async def first_model(self) -> str:
        """The first model that the server lists. Raises LlmFailed."""
        async with _failures():
            listed = await self._client.models.list()
            if not listed.data:
                raise LlmFailed("the LLM server lists no model")
            return listed.data[0].id

    async def close(self) -> None:
        """Closes its connections."""
        await self._client.close()

    @asynccontextmanager
    async def _permit(self) -> AsyncIterator[None]:
        if self._permits.locked() and self._waiting >= self._queue:
            raise Overloaded("more requests wait for the LLM than the service accepts; try again")
        self._waiting += 1
        try:
            await self._permits.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._permits.release()

    async def _request(self, ask: Ask) -> dict[str, Any]:
        if self.model is None:
            self.model = await self.first_model()
        messages = [{"role": str(turn.role), "content": turn.content} for turn in ask.turns]
        request: dict[str, Any] = dict(ask.options) | {"model": self.model, "max_tokens": ask.max_tokens}
        request.setdefault("temperature", ask.temperature)
        extra: dict[str, Any] = dict(request.pop("extra_body", {}))
        if ask.n > 1:
            request["n"] = ask.n
        if ask.schema is not None:
            shape = {"name": "reply", "schema": dict(ask.schema), "strict": True}
            request["response_format"] = {"type": "json_schema", "json_schema": shape}
        if ask.token_ids:
            request["logprobs"] = True
            extra |= {"logprob_token_ids": list(ask.token_ids), "return_tokens_as_token_ids": True}
        elif ask.top_logprobs:
            request |= {"logprobs": True, "top_logprobs": ask.top_logprobs}
        if ask.prefill is not None:
            messages.append({"role": Speaker.ASSISTANT.value, "content": ask.prefill})
            extra |= {"continue_final_message": True, "add_generation_prompt": False}
        return request | {"messages": messages, "extra_body": extra}


@asynccontextmanager
async def _failures() -> AsyncIterator[None]:
    """Turns what the openai client raises into LlmFailed."""
    try:
        yield
    except openai.APITimeoutError as error:
        raise LlmFailed("the LLM did not answer in time") from error
    except openai.APIStatusError as error:
        raise LlmFailed(f"the LLM server answered with status {error.status_code}") from error
    except openai.APIConnectionError as error:
        raise LlmFailed("the LLM server could not be reached") from error
    except openai.OpenAIError as error:
        raise LlmFailed("the LLM server's answer could not be read") from error


def _reply(body: ChatCompletion) -> Reply:
    try:
        texts = tuple(choice.message.content or "" for choice in body.choices)
        cut = tuple(choice.finish_reason == "length" for choice in body.choices)
        first = _first(body.choices[0].logprobs)
    except (AttributeError, TypeError, IndexError) as error:
        raise LlmFailed("the LLM server's answer has no choice to read") from error
    return Reply(texts, cut, first, _usage(body))


async def _pieces(chunks: openai.AsyncStream[ChatCompletionChunk]) -> AsyncIterator[Piece]:
    """Raises LlmFailed where the stream breaks off, or ends before it is complete."""
    finished = False
    async with _failures():
        async for chunk in chunks:
            for choice in chunk.choices[:1]:
                finished = finished or choice.finish_reason is not None
                cut = choice.finish_reason == "length"
                yield Piece(choice.delta.content or "", _first(choice.logprobs), cut, None)
            if chunk.usage is not None:
                yield Piece("", {}, False, _usage(chunk))
    if not finished:
        raise LlmFailed("the LLM's stream ended before its reply was complete")


def _first(logprobs: ChoiceLogprobs | ChunkLogprobs | None) -> Mapping[str, float]:
    if logprobs is None or not logprobs.content:
        return {}
    return {top.token: top.logprob for top in logprobs.content[0].top_logprobs}


def _usage(body: ChatCompletion | ChatCompletionChunk) -> Usage | None:
    if body.usage is None:
        return None
    details = body.usage.prompt_tokens_details
    return Usage(body.usage.prompt_tokens, body.usage.completion_tokens, details.cached_tokens if details else None)
