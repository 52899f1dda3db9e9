"""The probe as it is read from a real engine: four architectures, one of them with its prompts computed in chunks."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine import probes
from tests.engine.served import CHAT, COMPLETIONS, IDS, Reply, Served

WORDS = ["the", "night", "ferry", "to", "Harwick", "leaves", "from", "pier", "four", "at", "ten", "travel", "free"]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "schema": {"type": "object", "properties": {"can": {"type": "boolean"}}, "required": ["can"]},
    },
}
CLOSE = 1e-3


def text(words: int, seed: int = 0) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


async def test_equals_the_probe_on_transformers_hidden_states(served: Served) -> None:
    """Three positions and a conversation, short and long: one engine computes the long ones in several chunks."""
    async with served.client() as client:
        for words in (3, 40, 150):
            for endpoint, prompt, ids in served.prompts(text(words)):
                for stream in (False, True):
                    ask = served.ask(client, endpoint, **prompt, **served.probe(endpoint), max_tokens=2, stream=stream)
                    logprobs = (await ask).logprobs
                    assert logprobs is not None
                    assert served.file.logit(logprobs) == pytest.approx(served.expected(ids), abs=CLOSE)


async def test_says_different_things_of_different_prompts(served: Served) -> None:
    """So that the equality above is not one of constants."""
    said = [served.expected(served.model.prompt(text(20, seed))) for seed in range(8)]
    assert max(said) - min(said) > 100 * CLOSE


@pytest.mark.parametrize("served", ["llama"], indirect=True)
def test_long_prompts_were_computed_in_chunks(served: Served) -> None:
    assert "Chunked prefill is enabled with max_num_batched_tokens=64" in served.engine.log.read_text()


@pytest.mark.parametrize("length", [256, 257, 300])
async def test_equals_with_and_without_a_prefix_in_the_cache(served: Served, length: int) -> None:
    ids = served.model.prompt(text(400, seed=length))[:length]
    hits = []
    async with served.client() as client:
        for _ in range(3):
            before = served.engine.metrics()["vllm:prefix_cache_hits_total"]
            reply = await served.ask(client, COMPLETIONS, prompt=ids, max_tokens=1, **served.probe(COMPLETIONS))
            assert reply.logprobs is not None
            assert served.file.logit(reply.logprobs) == pytest.approx(served.expected(ids), abs=CLOSE)
            hits.append(served.engine.metrics()["vllm:prefix_cache_hits_total"] - before)
    assert hits[0] == 0
    assert hits[1] == hits[2] >= 128


async def test_equals_among_64_concurrent_requests_of_all_kinds(served: Served) -> None:
    """Each kind eight times, at lengths of their own: a masked probe raises, every other one is right."""
    chosen = random.Random(1)

    async def one(client: httpx.AsyncClient, kind: int, words: int, seed: int) -> Reply:
        said = text(words, seed)
        last, unused, eos, chat = served.prompts(said)
        endpoint, prompt, ids = [last, unused, eos, chat, chat, chat, chat, last][kind]
        body: dict[str, Any] = prompt | IDS | {"max_tokens": chosen.randint(1, 24), "stream": seed % 2 == 0}
        body |= [{"temperature": 0}, {"temperature": 1}, {"temperature": 2, "top_k": 20}][seed % 3]
        if kind < 5:
            body |= served.probe(endpoint)
        if kind in (4, 5):
            body |= {"response_format": SCHEMA}
        if kind == 7:
            body |= {"logprobs": 5}
        reply = await served.ask(client, endpoint, **body)
        assert not set(reply.ids) & set(served.file.slots)
        if kind < 4:
            assert reply.logprobs is not None
            assert served.file.logit(reply.logprobs) == pytest.approx(served.expected(ids), abs=CLOSE)
        elif kind == 4:
            assert reply.logprobs is not None
            with pytest.raises(ValueError, match="masked"):
                served.file.logit(reply.logprobs)
        return reply

    async with served.client() as client:
        await asyncio.gather(*(one(client, at % 8, chosen.randint(2, 150), at) for at in range(64)))


async def test_slots_are_never_generated(served: Served) -> None:
    """10,000 tokens at temperature 20 (see hot.py). That the other spare ids do come shows that it was hot enough."""
    hot = IDS | {"temperature": 2, "max_tokens": 200, "ignore_eos": True, "top_p": 1, "top_k": 0}
    async with served.client() as client:
        asks = (served.ask(client, COMPLETIONS, prompt=served.model.prompt(text(5, at)), **hot) for at in range(50))
        replies = await asyncio.gather(*asks)
    ids = [at for reply in replies for at in reply.ids]
    assert len(ids) == 10_000
    assert not set(ids) & set(served.file.slots)
    assert {min(served.file.slots) - 2, min(served.file.slots) - 1} <= set(ids)


async def test_a_grammar_masks_the_slots(served: Served) -> None:
    """Which the client must take for a broken gate, not for a probability of one half."""
    async with served.client() as client:
        endpoint, prompt, _ = served.prompts(text(10))[-1]
        body = prompt | served.probe(endpoint)
        reply = await served.ask(client, endpoint, **body, max_tokens=4, response_format=SCHEMA)
    assert reply.logprobs is not None
    with pytest.raises(ValueError, match="masked"):
        served.file.logit(reply.logprobs)


async def test_another_probe_is_told_apart(served: Served, tmp_path: Path) -> None:
    other = probes.make(tmp_path / "other.safetensors", served.model, seed=1)
    async with served.client() as client:
        endpoint, prompt, _ = served.prompts(text(10))[0]
        reply = await served.ask(client, endpoint, **prompt, **served.probe(endpoint), max_tokens=1)
    assert reply.logprobs is not None
    with pytest.raises(ValueError, match="fingerprint"):
        other.logit(reply.logprobs)


async def test_neighbours_that_ask_for_plain_logprobs_lose_the_likeliest_tokens(served: Served) -> None:
    """As the probe's decision warns: on the V1 model runner, while a request with logprob_token_ids is in the batch."""
    plain = IDS | {"prompt": served.model.prompt(text(8)), "logprobs": 5, "max_tokens": 1, "temperature": 0}
    turns = {"model": "model", "messages": [{"role": "user", "content": text(8)}]}
    busy = turns | served.probe(CHAT) | {"max_tokens": 1900, "ignore_eos": True, "stream": True}
    async with served.client() as client:
        alone = await served.ask(client, COMPLETIONS, **plain)
        async with client.stream("POST", CHAT, json=busy) as long:
            lines = long.aiter_lines()
            await anext(lines)
            beside = [await served.ask(client, COMPLETIONS, **plain) for _ in range(10)]
    assert alone.logprobs is not None
    assert len(alone.logprobs) == 5
    assert all(-1000 < logprob < 0 for logprob in alone.logprobs.values())
    assert all(reply.ids == alone.ids for reply in beside)
    spoken = alone.ids[0]
    assert {spoken: pytest.approx(alone.logprobs[spoken], abs=CLOSE), 0: -9999} in [reply.logprobs for reply in beside]
