"""A scripted LLM: the real OpenAI protocol on a real port, with a function where a model's good sense would be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import jsonschema_rs
import orjson
import uvicorn
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

from scopegate.llm.capabilities import GREETING
from scopegate.llm.client import Llm
from scopegate.probe_file import FLOOR, ProbeFile

MODEL = "scripted-1"
FOREVER = float("inf")
MASKED = -9999.0
UNLIKELY = -30.0


@dataclass(frozen=True)
class Said:
    """What the LLM does with one request.

    text: the reply, or one for each of n, the last for the rest. first: logprobs of its first token, by text. after_s:
    wait before the headers. drip_s: wait before each token of a stream, or each eight bytes of a whole reply.
    stops_after: tokens of a stream (of a whole reply any number means half of it), `then` the connection is cut, hangs,
    or carries an error as vLLM sends it. body: sent as it is instead of a completion. choices False: an empty list.
    """

    text: str | Sequence[str] = "Well."
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    choices: bool = True
    first: Mapping[str, float] = field(default_factory=dict)
    cached: int = 0
    after_s: float = 0.0
    drip_s: float = 0.0
    stops_after: int | None = None
    then: Literal["cut", "hang", "error"] = "cut"


@dataclass
class Asked:
    """A request, and what became of it: tokens that were sent, when it was done or the client went away."""

    body: dict[str, Any]
    headers: Mapping[str, str]
    at: float = field(default_factory=time.monotonic)
    sent: int = 0
    done_at: float | None = None
    gone_at: float | None = None

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def system(self) -> str:
        return "\n".join(turn["content"] for turn in self.body["messages"] if turn["role"] == "system")

    @property
    def user(self) -> str:
        """The last user turn."""
        return next((turn["content"] for turn in reversed(self.body["messages"]) if turn["role"] == "user"), "")

    @property
    def schema(self) -> dict[str, Any] | None:
        shape = self.body.get("response_format") or {}
        schema: dict[str, Any] | None = shape.get("json_schema", {}).get("schema")
        return schema


Script = Callable[[Asked], Said | str]


def always(said: Said | str) -> Script:
    return lambda _: said


def in_turn(*said: Said | str) -> Script:
    """Each once, the last for ever after."""
    left = list(said)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def by_prompt(scripts: Mapping[str, Script], otherwise: Script | None = None) -> Script:
    """The script whose marker stands in the system turn."""

    def script(asked: Asked) -> Said | str:
        for marker, one in scripts.items():
            if marker in asked.system:
                return one(asked)
        assert otherwise is not None, f"no script for a prompt that begins {asked.system[:80]!r}"
        return otherwise(asked)

    return script


def pieces(text: str) -> list[str]:
    """Its tokens: words with the space before them."""
    return re.findall(r"\s*\S+|\s+$", text)


def smallest(schema: Mapping[str, Any]) -> Any:
    """What a model with nothing to say writes under a grammar: the first choice everywhere, all lists short."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return smallest(schema["anyOf"][0])
    kind = schema.get("type")
    if kind == "object":
        return {name: smallest(each) for name, each in schema.get("properties", {}).items()}
    if kind == "array":
        return [smallest(schema["items"])] * schema.get("minItems", 0)
    return {"string": "-" * schema.get("minLength", 0), "boolean": False, "null": None}.get(str(kind), 0)


def held_to(schema: dict[str, Any], text: str) -> str:
    """The text if the schema allows it, else the smallest thing that it does."""
    with contextlib.suppress(orjson.JSONDecodeError):
        if jsonschema_rs.is_valid(schema, orjson.loads(text)):
            return text
    return orjson.dumps(smallest(schema)).decode()


class ScriptedLlm:
    """The server, running while the context lasts; its knobs may be turned meanwhile.

    script: asked for every completion but those that find out the server's capabilities; these get `greeting`.
    json_schema, token_logprobs, top_logprobs, several, prefill, tokenize: whether it can do that; else it ignores it.
    asked, greeted, turned_away: the completions so far; those for its capabilities; those with a wrong key.
    probe, logit: answers for the probe's slots as the engine's plugin does; logit takes all the prompt's text.
    masked: the slots are masked, as they are wherever a schema is decoded. key: refuses others with 401.
    A script that raises is raised again where the context ends.
    """

    def __init__(
        self,
        script: Script = always(Said()),  # noqa: B008 - frozen
        *,
        probe: ProbeFile | None = None,
        logit: Callable[[str], float] = lambda _: 0.0,
        key: str | None = None,
    ) -> None:
        self._probe = probe
        self._logit = logit
        self._key = key
        self._words: list[str] = []
        self._port = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.begin_again(script)

    def begin_again(self, script: Script = always(Said())) -> None:  # noqa: B008 - frozen
        """All knobs as they were, nothing asked so far."""
        self.script = script
        self.greeting: Script = always("Hello there.")
        self.asked: list[Asked] = []
        self.greeted: list[Asked] = []
        self.turned_away: list[Asked] = []
        self.json_schema = self.token_logprobs = self.top_logprobs = True
        self.several = self.prefill = self.tokenize = True
        self.masked = False
        self._broken: Exception | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> Self:
        self.come_back()
        return self

    def __exit__(self, *_: object) -> None:
        self.die()
        if self._broken is not None:
            raise self._broken

    def come_back(self) -> None:
        """Listens, on the same port as before."""
        # asyncio turns off Nagle's waits only where the protocol is named.
        listening = socket.socket(proto=socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self._port))
        self._port = listening.getsockname()[1]
        config = uvicorn.Config(self._app, interface="asgi3", lifespan="off", log_config=None, access_log=False)
        server = self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(_serve(server, listening)), daemon=True)
        self._thread.start()
        until(lambda: server.started)

    def die(self) -> None:
        """Drops every connection and listens no more."""
        if self._server is None or self._thread is None:
            return
        self._server.force_exit = self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._server = self._thread = None

    def wait_for(self, count: int) -> Asked:
        """The count-th request, as soon as it is there."""
        until(lambda: len(self.asked) >= count)
        return self.asked[count - 1]

    async def _app(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert scope["type"] == "http"
        body, more = b"", True
        while more:
            message: Any = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        wire = _Wire(send)
        if self._key is not None and headers.get("authorization") != f"Bearer {self._key}":
            self.turned_away.append(Asked(orjson.loads(body or b"{}"), headers))
            return await wire.whole(401, {"error": {"message": f"{headers.get('authorization')} is no key"}})
        if scope["path"] == "/v1/models":
            return await wire.whole(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        if scope["path"] == "/tokenize" and self.tokenize:
            ids = [self._id(piece) for piece in pieces(orjson.loads(body)["prompt"])]
            return await wire.whole(200, {"count": len(ids), "tokens": ids, "max_model_len": 4096})
        if scope["path"] != "/v1/chat/completions":
            return await wire.whole(404, {"detail": "Not Found"})
        asked = Asked(orjson.loads(body), headers)
        greeting = asked.user == GREETING
        (self.greeted if greeting else self.asked).append(asked)
        try:
            said = (self.greeting if greeting else self.script)(asked)
        except Exception as error:
            self._broken = error
            raise
        said = Said(said) if isinstance(said, str) else said
        speaking = asyncio.ensure_future(self._speak(asked, said, wire))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({speaking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if speaking.done():
                asked.done_at = time.monotonic()
                await speaking
            else:
                asked.gone_at = time.monotonic()
        finally:
            speaking.cancel()
            leaving.cancel()
        return None

    async def _speak(self, asked: Asked, said: Said, wire: _Wire) -> None:
        await _sleep(said.after_s)
        body = asked.body
        if said.body is not None or said.status != 200:
            refused = {"error": {"message": "The scripted LLM was told to fail.", "code": said.status}}
            return await wire.slowly(said.body if said.body is not None else _json(refused), said)
        if self.prefill and body.get("continue_final_message") and body.get("add_generation_prompt"):
            return await wire.whole(400, {"error": {"message": "Cannot set both, the one or the other."}})
        texts = self._texts(asked, said)
        prompt = sum(len(pieces(str(turn["content"]))) for turn in body["messages"])
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": sum(len(tokens) for tokens, _ in texts),
            "prompt_tokens_details": {"cached_tokens": said.cached},
        }
        usage["total_tokens"] = prompt + sum(len(tokens) for tokens, _ in texts)
        head = {"id": "chatcmpl-1", "created": int(time.time()), "model": body["model"]}
        if asked.stream:
            return await self._stream(asked, said, wire, texts, head, usage)
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(tokens)},
                "logprobs": self._logprobs(asked, said, tokens),
                "finish_reason": finish,
            }
            for index, (tokens, finish) in enumerate(texts)
        ]
        reply = head | {"object": "chat.completion", "choices": choices, "usage": usage}
        asked.sent = usage["completion_tokens"]
        return await wire.slowly(_json(reply), said)

    async def _stream(
        self,
        asked: Asked,
        said: Said,
        wire: _Wire,
        texts: list[tuple[list[str], str]],
        head: Mapping[str, Any],
        usage: Mapping[str, Any],
    ) -> None:
        def chunk(choices: list[dict[str, Any]], **more: Any) -> bytes:
            event = {**head, "object": "chat.completion.chunk", "choices": choices, **more}
            return b"data: " + _json(event) + b"\n\n"

        await wire.start(200, {"content-type": "text/event-stream; charset=utf-8"} | dict(said.headers))
        for index in range(len(texts)):
            await wire.send(chunk([{"index": index, "delta": {"role": "assistant", "content": ""}}]))
        for at in range(max(len(tokens) for tokens, _ in texts) if texts else 0):
            if at == said.stops_after:
                return await self._stop(said, wire)
            await _sleep(said.drip_s)
            for index, (tokens, _) in enumerate(texts):
                if at < len(tokens):
                    logprobs = self._logprobs(asked, said, tokens[at : at + 1], first=at == 0)
                    await wire.send(
                        chunk([{"index": index, "delta": {"content": tokens[at]}, "logprobs": logprobs}]),
                    )
                    asked.sent += 1
        if said.stops_after is not None:
            return await self._stop(said, wire)
        for index, (_, finish) in enumerate(texts):
            await wire.send(chunk([{"index": index, "delta": {}, "finish_reason": finish}]))
        if (asked.body.get("stream_options") or {}).get("include_usage"):
            await wire.send(chunk([], usage=usage))
        return await wire.send(b"data: [DONE]\n\n", last=True)

    async def _stop(self, said: Said, wire: _Wire) -> None:
        if said.then == "hang":
            await _sleep(FOREVER)
        if said.then == "error":
            await wire.send(b'data: {"error": {"message": "Engine core died.", "code": 500}}\n\n')
            await wire.send(b"data: [DONE]\n\n", last=True)

    def _texts(self, asked: Asked, said: Said) -> list[tuple[list[str], str]]:
        """The tokens of each choice, and why it ended."""
        if not said.choices:
            return []
        given = [said.text] if isinstance(said.text, str) else list(said.text)
        texts = [given[min(index, len(given) - 1)] for index in range(asked.body.get("n") or 1 if self.several else 1)]
        if self.json_schema and asked.schema is not None:
            texts = [held_to(asked.schema, text) for text in texts]
        most = asked.body.get("max_completion_tokens") or asked.body.get("max_tokens")
        cut = [(pieces(text)[:most], "length" if len(pieces(text)) > (most or FOREVER) else "stop") for text in texts]
        return [(tokens or [""], finish) for tokens, finish in cut]

    def _logprobs(
        self, asked: Asked, said: Said, tokens: Sequence[str], *, first: bool = True
    ) -> dict[str, Any] | None:
        body = asked.body
        if not body.get("logprobs"):
            return None
        known = dict(said.first) or {tokens[0]: -0.01}
        if wanted := body.get("logprob_token_ids") if self.token_logprobs else None:
            most_likely = {self._id(tokens[0]): known.get(tokens[0], -0.01)}
            by_id = most_likely | {token: self._logprob(asked, known, token) for token in wanted}
            top = {f"token_id:{token}": logprob for token, logprob in by_id.items()}
        elif self.top_logprobs:
            filler = {f"-{rank}": UNLIKELY - rank for rank in range(20)}
            ranked = sorted((known | filler).items(), key=lambda one: -one[1])
            top = dict(ranked[: body.get("top_logprobs") or 0])
        else:
            top = {}
        of_first = [{"token": token, "logprob": logprob, "bytes": None} for token, logprob in top.items()]
        return {
            "content": [
                {
                    "token": token,
                    "logprob": known.get(token, -0.01),
                    "bytes": None,
                    "top_logprobs": of_first if first and at == 0 else [],
                }
                for at, token in enumerate(tokens)
            ]
        }

    def _logprob(self, asked: Asked, known: Mapping[str, float], token: int) -> float:
        slots = self._probe.description.slots if self._probe is not None else None
        if slots is not None and token in {slots.a, slots.b, slots.c}:
            if self.masked or (self.json_schema and asked.schema is not None):
                return MASKED
            assert self._probe is not None
            if token == slots.a:
                return self._logit("\n".join(turn["content"] for turn in asked.body["messages"])) - FLOOR
            return -FLOOR if token == slots.b else self._probe.fingerprint - FLOOR
        return known.get(self._words[token], UNLIKELY) if token < len(self._words) else UNLIKELY

    def _id(self, word: str) -> int:
        if word not in self._words:
            self._words.append(word)
        return self._words.index(word)


@contextlib.asynccontextmanager
async def llm_at(server: ScriptedLlm, probe: ProbeFile | None = None, **options: Any) -> AsyncIterator[Llm]:
    """A client that has found out what the server can do."""
    llm = Llm(server.url, None, None, **{"concurrency": 16, "queue": 16, "retries": 0} | options)
    try:
        await llm.find_out(probe)
        yield llm
    finally:
        await llm.close()


class _Wire:
    """Sends a response."""

    def __init__(self, send: ASGISendCallable) -> None:
        self._send: Callable[[Any], Any] = send

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def send(self, body: bytes, *, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})

    async def whole(self, status: int, body: Mapping[str, Any]) -> None:
        await self.start(status, {"content-type": "application/json"})
        await self.send(_json(body), last=True)

    async def slowly(self, body: bytes, said: Said) -> None:
        await self.start(said.status, {"content-type": "application/json"} | dict(said.headers))
        if said.stops_after is not None:
            await self.send(body[: len(body) // 2])
            return await _sleep(FOREVER if said.then == "hang" else 0)
        step = 8 if said.drip_s else max(1, len(body))
        for at in range(0, len(body), step):
            await _sleep(said.drip_s)
            await self.send(body[at : at + step])
        return await self.send(b"", last=True)


def _json(body: Any) -> bytes:
    """As Python's own servers write it: halves of characters pass."""
    return json.dumps(body).encode()


async def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    await server.serve([listening])
    for connection in list(server.server_state.connections):
        if connection.transport is not None:
            connection.transport.abort()


async def _left(receive: ASGIReceiveCallable) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _sleep(seconds: float) -> None:
    await (asyncio.Event().wait() if seconds == FOREVER else asyncio.sleep(seconds))


def until(true: Callable[[], bool], within_s: float = 10) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)
