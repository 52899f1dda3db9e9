"""What an LLM's server can do, found out by tiny requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

import structlog

from scopegate.domain import Speaker, Turn
from scopegate.llm.asks import Ask, LlmAway, LlmFailed, LlmRefused, Reply, by_id
from scopegate.llm.server import Server
from scopegate.probe_file import ProbeFile

log = structlog.get_logger()

# What it is asked; no words that anybody else would send, so that its logs and its stand-ins can tell.
GREETING = "Say hello to the gatekeeper."
_HELLO = Ask((Turn(Speaker.USER, GREETING),), max_tokens=1)
# Nobody says this of their own accord.
_HELD = {"hello": "quandorvil-7"}
_SCHEMA = {
    "type": "object",
    "properties": {"hello": {"enum": [_HELD["hello"]]}},
    "required": ["hello"],
    "additionalProperties": False,
}
# Any three; every vocabulary has them.
_SOME_IDS = (0, 1, 2)
_PATIENCE_S = 30.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LabelIds:
    """The ways of writing yes and no that are one token each, by token id; none is empty."""

    yes: tuple[int, ...]
    no: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a server can do.

    json_schema: it holds a reply to a schema. token_logprobs: it gives the logprobs of tokens that are named by id;
    top_logprobs: those of the most likely. prefill: it goes on with a reply that was begun. several: it samples n
    replies from one prompt. probe: its engine runs the probe; probe_fault: why it cannot be read, where one is set.
    """

    json_schema: bool
    token_logprobs: bool
    top_logprobs: bool
    prefill: bool
    several: bool
    label_ids: LabelIds | None
    probe: bool
    probe_fault: str | None

    def shown(self) -> dict[str, Any]:
        """For people: what there is, without token ids."""
        return asdict(self) | {"label_ids": self.label_ids is not None}

    def missing(self) -> Iterator[str]:
        """What it cannot do, and what comes of that: a sentence each."""
        if not self.json_schema:
            yield "replies are not held to a JSON schema: they are parsed, and asked for once more if they do not fit"
        if not (self.token_logprobs and self.label_ids):
            yield "tokens cannot be named by id: yes and no are looked for among the most likely first tokens"
        if not self.top_logprobs:
            yield "there are no logprobs of the most likely tokens: fast judging needs those, or tokens named by id"
        if not self.prefill:
            yield "a reply cannot be begun for the LLM: it may say something before what is asked for"
        if not self.several:
            yield "several replies take a request each: votes cost as many prompts"
        if self.probe_fault is not None:
            yield f"the probe cannot be read: {self.probe_fault}"


async def find_out(server: Server, model: str, probe: ProbeFile | None) -> Capabilities:
    """Asks for each. Raises LlmFailed where the server does not even say hello, or goes away meanwhile."""
    await _greet(server, model)
    fault = None if probe is None else await _probe_fault(server, model, probe)
    return Capabilities(
        json_schema=await _holds_to_schema(server, model),
        token_logprobs=await _names_tokens(server, model),
        top_logprobs=await _ranks_tokens(server, model),
        prefill=await _goes_on(server, model),
        several=await _says_several(server, model),
        label_ids=await _label_ids(server, model),
        probe=probe is not None and fault is None,
        probe_fault=fault,
    )


async def _greet(server: Server, model: str) -> None:
    """Says hello, in the protocol's newer fields where the older are refused."""
    try:
        await _within(server.complete(model, _HELLO))
    except LlmRefused as refusal:
        server.modern = not server.modern
        try:
            await _within(server.complete(model, _HELLO))
        except LlmFailed:
            server.modern = not server.modern
            raise refusal from None


async def _holds_to_schema(server: Server, model: str) -> bool:
    reply = await _tried(server, model, replace(_HELLO, max_tokens=64, schema=_SCHEMA))
    # A grammar may allow any amount of white space, and a poor model make use of it until the tokens run out.
    said = "".join(reply.texts[0].split()) if reply else ""
    return said != "" and json.dumps(_HELD, separators=(",", ":")).startswith(said)


async def _names_tokens(server: Server, model: str) -> bool:
    reply = await _tried(server, model, replace(_HELLO, token_ids=_SOME_IDS))
    return reply is not None and by_id(reply.first).keys() >= set(_SOME_IDS)


async def _ranks_tokens(server: Server, model: str) -> bool:
    reply = await _tried(server, model, replace(_HELLO, top_logprobs=5))
    return reply is not None and len(reply.first) > 0


async def _goes_on(server: Server, model: str) -> bool:
    """Whether the fields are read: a server that does refuses a reply that is to be both gone on with and begun."""
    begun = replace(_HELLO, turns=(*_HELLO.turns, Turn(Speaker.ASSISTANT, "Hello")))
    both = replace(begun, options={"continue_final_message": True, "add_generation_prompt": True})
    return (
        await _tried(server, model, replace(_HELLO, prefill="Hello")) is not None
        and await _tried(server, model, both) is None
    )


async def _says_several(server: Server, model: str) -> bool:
    reply = await _tried(server, model, replace(_HELLO, n=2, temperature=1.0))
    return reply is not None and len(reply.texts) == 2


async def _label_ids(server: Server, model: str) -> LabelIds | None:
    found = []
    for word in ("yes", "no"):
        ids: list[int] = []
        for form in (word, word.title(), word.upper(), f" {word}", f" {word.title()}"):
            tokens = await _unless_lacking(server, model, partial(server.token_ids, model, form))
            if tokens is None:
                return None
            if len(tokens) == 1:
                ids += tokens
        found.append(tuple(dict.fromkeys(ids)))
    yes, no = found
    return LabelIds(yes, no) if yes and no else None


async def _probe_fault(server: Server, model: str, probe: ProbeFile) -> str | None:
    slots = probe.description.slots
    if slots is None:
        return f"the probe {probe.description.name} has no slots to be read from"
    reply = await _tried(server, model, replace(_HELLO, token_ids=(slots.a, slots.b, slots.c)))
    if reply is None:
        return "the LLM server gives no logprobs of tokens named by id"
    try:
        probe.logit(by_id(reply.first))
    except ValueError as error:
        return str(error)
    return None


async def _tried(server: Server, model: str, ask: Ask) -> Reply | None:
    """The reply; None where the server cannot give one."""
    return await _unless_lacking(server, model, lambda: server.complete(model, ask))


async def _unless_lacking(server: Server, model: str, asking: Callable[[], Awaitable[_T]]) -> _T | None:
    """What is asked for; None where the server refuses it, or answers with something else than the protocol.

    A status of 5xx, or an answer that cannot be read, may come of a bad moment: it is believed only if the server says
    hello afterwards, and then does the same again.
    """
    try:
        return await _within(asking())
    except LlmRefused:
        return None
    except LlmAway:
        raise
    except LlmFailed:
        await _within(server.complete(model, _HELLO))
    try:
        return await _within(asking())
    except LlmAway:
        raise
    except LlmFailed:
        return None


async def _within(asking: Awaitable[_T]) -> _T:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await asking
    except TimeoutError:
        raise LlmAway("the LLM did not answer in time") from None
