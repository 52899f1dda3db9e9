"""The LLM client against vLLM itself: what it finds out there, and that leaving reaches the engine."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator

import pytest

from scopegate.domain import Speaker, Turn
from scopegate.llm.client import Ask, Llm, by_id
from tests.engine import models
from tests.engine.served import Served, serve

ASK = Ask((Turn(Speaker.USER, "Where does the storm bell hang?"),), 1500, options={"ignore_eos": True})


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, llama: models.Model) -> Iterator[Served]:
    probe = tmp_path_factory.mktemp("probe") / "probe.safetensors"
    with serve(llama, probe, "last_prompt_token") as served:
        yield served


@pytest.fixture
async def llm(engine: Served) -> AsyncIterator[Llm]:
    llm = Llm(f"{engine.engine.url}/v1", None, None, concurrency=8, queue=8, retries=0)
    await llm.find_out(engine.file)
    yield llm
    await llm.close()


async def idle(engine: Served) -> None:
    async with asyncio.timeout(20):
        while engine.engine.metrics()["vllm:num_requests_running"]:
            await asyncio.sleep(0.05)


async def test_vllm_can_everything(engine: Served, llm: Llm) -> None:
    assert llm.model == "model"
    can = llm.capabilities
    assert can is not None
    # The tiny tokenizer has words of its own; whether yes and no are one token each is its affair.
    assert list(dataclasses.replace(can, label_ids=can.label_ids or [1]).missing()) == []  # type: ignore[arg-type]
    assert can.probe


async def test_another_probe_is_found_out(engine: Served) -> None:
    llm = Llm(f"{engine.engine.url}/v1", "model", None, concurrency=8, queue=8, retries=0)
    await llm.find_out(dataclasses.replace(engine.file, fingerprint=engine.file.fingerprint + 1))
    assert llm.capabilities is not None
    assert not llm.capabilities.probe
    assert "fingerprint" in str(llm.capabilities.probe_fault)
    await llm.close()


async def test_the_probe_comes_with_the_first_piece(engine: Served, llm: Llm) -> None:
    slots = engine.file.description.slots
    assert slots is not None
    ask = dataclasses.replace(ASK, max_tokens=4, token_ids=(slots.a, slots.b, slots.c))
    expected = engine.expected(engine.model.chat(*ASK.turns))
    assert engine.file.logit(by_id((await llm.complete(ask)).first)) == pytest.approx(expected, abs=1e-3)
    async with llm.stream(ask) as pieces:
        came = [piece async for piece in pieces]
    assert engine.file.logit(by_id(came[0].first)) == pytest.approx(expected, abs=1e-3)
    assert all(not piece.first for piece in came[1:])
    usage = came[-1].usage
    assert usage is not None
    assert usage.completion == 4


async def test_a_schema_holds_a_model_that_knows_nothing(llm: Llm) -> None:
    """As far as each gets: it may spend its tokens on white space."""
    schema = {
        "type": "object",
        "properties": {"label": {"enum": ["f1", "f2"]}},
        "required": ["label"],
        "additionalProperties": False,
    }
    reply = await llm.complete(Ask(ASK.turns, 400, temperature=1.0, n=3, schema=schema))
    said = ["".join(text.split()) for text in reply.texts]
    assert len(said) == 3
    assert all(any(whole.startswith(each) for whole in ('{"label":"f1"}', '{"label":"f2"}')) for each in said), said
    assert max(map(len, said)) > len('{"label":'), said


async def test_leaving_a_stream_stops_the_engine(engine: Served, llm: Llm) -> None:
    before = engine.engine.metrics()["vllm:generation_tokens_total"]
    async with llm.stream(ASK) as pieces:
        assert (await anext(pieces)).text
    await idle(engine)
    assert engine.engine.metrics()["vllm:generation_tokens_total"] - before < ASK.max_tokens / 2


async def test_a_deadline_stops_the_engine(engine: Served, llm: Llm) -> None:
    before = engine.engine.metrics()["vllm:generation_tokens_total"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await llm.complete(ASK)
    await idle(engine)
    assert engine.engine.metrics()["vllm:generation_tokens_total"] - before < ASK.max_tokens / 2
