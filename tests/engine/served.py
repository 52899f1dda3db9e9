"""A served model with a probe: asks it as any OpenAI client would, and knows what the probe should say."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from scopegate.domain import Speaker, Turn
from scopegate.probe_file import Position, ProbeFile
from tests.engine import probes
from tests.engine.engine import Engine
from tests.engine.models import Model

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
IDS = {"return_tokens_as_token_ids": True, "return_token_ids": True}


@dataclass(frozen=True)
class Reply:
    """A first choice's tokens, and the first token's logprobs by id, None where none came."""

    ids: list[int]
    logprobs: dict[int, float] | None


@dataclass(frozen=True)
class Served:
    """engine serves model with the probe in file."""

    engine: Engine
    model: Model
    file: ProbeFile

    def expected(self, ids: list[int]) -> float:
        """The probe on transformers' hidden state of a prompt."""
        return probes.logit(self.file, self.model.state(ids))

    def probe(self, endpoint: str) -> dict[str, Any]:
        """The part of a request that asks for the probe."""
        return IDS | {"logprobs": True if endpoint == CHAT else 1, "logprob_token_ids": list(self.file.slots)}

    def prompts(self, text: str) -> list[tuple[str, dict[str, Any], list[int]]]:
        """text at the three positions and as a conversation: endpoint, the part of the body, the prompt's ids."""
        completions = [self.model.prompt(text, position) for position in Position]
        chat = {"messages": [{"role": "user", "content": text}]}
        return [
            *((COMPLETIONS, {"prompt": ids}, ids) for ids in completions),
            (CHAT, chat, self.model.chat(Turn(Speaker.USER, text))),
        ]

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.engine.url, timeout=120, limits=limits)

    async def ask(self, client: httpx.AsyncClient, endpoint: str, **body: Any) -> Reply:
        """One request, streamed where body says so. Raises AssertionError where it is refused."""
        body = {"model": "model"} | body
        if not body.get("stream"):
            response = await client.post(endpoint, json=body)
            assert response.status_code == 200, response.text
            answer = response.json()["choices"][0]
            return Reply(answer["token_ids"], _first(answer.get("logprobs")))
        chunks: list[dict[str, Any]] = []
        async with client.stream("POST", endpoint, json=body) as stream:
            assert stream.status_code == 200, await stream.aread()
            async for line in stream.aiter_lines():
                if line.startswith("data: {"):
                    chunks += json.loads(line.removeprefix("data: "))["choices"]
        spoken = [chunk for chunk in chunks if chunk.get("token_ids")]
        return Reply([at for chunk in spoken for at in chunk["token_ids"]], _first(spoken[0].get("logprobs")))


def _first(logprobs: dict[str, Any] | None) -> dict[int, float] | None:
    if logprobs is None:
        return None
    if "content" in logprobs:
        pairs = [(top["token"], top["logprob"]) for top in logprobs["content"][0]["top_logprobs"]]
    else:
        pairs = list(logprobs["top_logprobs"][0].items())
    return {int(token.removeprefix("token_id:")): logprob for token, logprob in pairs}


@contextlib.contextmanager
def serve(model: Model, probe: Path, position: str, *options: str, **variables: str) -> Iterator[Served]:
    """Makes a probe for the model in a new file, and serves the model with it."""
    file = probes.make(probe, model, position=Position(position))
    with Engine(model.path, file.path, *options, **variables) as engine:
        yield Served(engine, model, file)
