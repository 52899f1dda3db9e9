"""What is found out about a server, from servers that can and cannot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from scopegate.domain import Speaker, Turn
from scopegate.llm.capabilities import Capabilities
from scopegate.llm.client import Ask, LlmAway, LlmFailed, by_id
from scopegate.probe_file import Description, Kind, Position, ProbeFile, Slots
from tests.scripted import Asked, Said, ScriptedLlm, always, in_turn, llm_at

ASK = Ask((Turn(Speaker.USER, "Where is the bell?"),), 1)
PROBE = ProbeFile(
    Path("probe.safetensors"),
    Description(
        name="a probe",
        kind=Kind.HIDDEN_STATE,
        architecture="LlamaForCausalLM",
        model="a model",
        hidden_size=8,
        vocab_size=1000,
        prompt="answerable@1",
        temperature=1.0,
        threshold=0.5,
        position=Position.LAST_PROMPT_TOKEN,
        slots=Slots(997, 998, 999),
    ),
    fingerprint=17.5,
)


@pytest.fixture
def server() -> Iterator[ScriptedLlm]:
    with ScriptedLlm(probe=PROBE, logit=lambda _: 1.25) as server:
        yield server


async def found(server: ScriptedLlm, probe: ProbeFile | None = None) -> Capabilities:
    async with llm_at(server, probe) as llm:
        assert llm.capabilities is not None
        return llm.capabilities


async def test_a_server_that_can_everything(server: ScriptedLlm) -> None:
    can = await found(server, PROBE)
    assert can.json_schema
    assert can.token_logprobs
    assert can.top_logprobs
    assert can.prefill
    assert can.several
    assert can.label_ids is not None
    assert set(can.label_ids.yes).isdisjoint(can.label_ids.no)
    assert can.probe
    assert can.probe_fault is None
    assert list(can.missing()) == []
    assert server.asked == [], "nothing but greetings"


@pytest.mark.parametrize(
    ("knob", "sentence"),
    [
        ("json_schema", "not held to a JSON schema"),
        ("token_logprobs", "cannot be named by id"),
        ("top_logprobs", "no logprobs of the most likely"),
        ("prefill", "cannot be begun"),
        ("several", "a request each"),
    ],
)
@pytest.mark.parametrize("refuses", [False, True])
async def test_a_server_that_lacks_one(server: ScriptedLlm, knob: str, sentence: str, refuses: bool) -> None:
    """Whether it ignores what it does not know, or refuses it."""
    field = {
        "json_schema": "response_format",
        "token_logprobs": "logprob_token_ids",
        "top_logprobs": "top_logprobs",
        "prefill": "continue_final_message",
        "several": "n",
    }[knob]
    setattr(server, knob, False)
    server.greeting = lambda asked: Said(status=400 if refuses and field in asked.body else 200)
    can = await found(server)
    lacking = [each.name for each in dataclasses.fields(can) if getattr(can, each.name) is False]
    assert lacking == [knob, "probe"]
    assert [said for said in can.missing() if sentence in said]
    assert len(list(can.missing())) == 1


async def test_a_schema_is_not_held_to_by_chance(server: ScriptedLlm) -> None:
    server.json_schema = False
    for text in ("{}", '{"hello": "gatekeeper"}', '```json\n{"hello": "quandorvil-7"}\n```', "  "):
        server.greeting = always(text)
        assert not (await found(server)).json_schema, text


async def test_white_space_under_a_grammar_is_no_lack(server: ScriptedLlm) -> None:
    server.json_schema = False
    server.greeting = always('{\n\n\n "hello" \n\n\n')
    assert (await found(server)).json_schema


async def test_labels_that_are_no_single_token(server: ScriptedLlm) -> None:
    server.tokenize = False
    can = await found(server)
    assert can.label_ids is None
    assert can.shown()["label_ids"] is False
    assert [said for said in can.missing() if "yes and no are looked for" in said]


async def test_a_probe_that_cannot_be_read(server: ScriptedLlm) -> None:
    server.masked = True
    can = await found(server, PROBE)
    assert not can.probe
    assert can.probe_fault is not None
    assert "fingerprint" in can.probe_fault
    assert [said for said in can.missing() if said.startswith("the probe cannot be read: ")]


async def test_another_probe(server: ScriptedLlm) -> None:
    can = await found(server, dataclasses.replace(PROBE, fingerprint=18.0))
    assert "fingerprint" in str(can.probe_fault)


async def test_an_engine_without_the_plugin() -> None:
    with ScriptedLlm() as server:
        assert "fingerprint" in str((await found(server, PROBE)).probe_fault)
        server.token_logprobs = False
        assert "does it run the plugin" in str((await found(server, PROBE)).probe_fault)
        server.greeting = lambda asked: Said(status=400 if "logprob_token_ids" in asked.body else 200)
        assert "no logprobs of tokens named by id" in str((await found(server, PROBE)).probe_fault)


async def test_the_probes_logit_arrives_and_is_masked_under_a_grammar(server: ScriptedLlm) -> None:
    slots = PROBE.description.slots
    assert slots is not None
    async with llm_at(server, PROBE) as llm:
        ask = dataclasses.replace(ASK, token_ids=(slots.a, slots.b, slots.c))
        assert PROBE.logit(by_id((await llm.complete(ask)).first)) == pytest.approx(1.25)
        masked = dataclasses.replace(ask, schema={"enum": ["x"]})
        with pytest.raises(ValueError, match="masked"):
            PROBE.logit(by_id((await llm.complete(masked)).first))


async def test_a_server_that_is_away_is_not_taken_for_one_that_cannot(server: ScriptedLlm) -> None:
    def fails_at(number: int) -> None:
        server.greeting = in_turn(*["Hello."] * number, Said(status=503), "Hello.")

    for number in range(8):
        fails_at(number)
        with pytest.raises(LlmAway, match="status 503"):
            await found(server, PROBE)
    fails_at(8)
    assert (await found(server, PROBE)).json_schema


@pytest.mark.parametrize("bad", [Said(status=500), Said(status=504), Said(body=b"<html>Oops</html>")])
async def test_a_bad_second_is_no_lack(server: ScriptedLlm, bad: Said) -> None:
    for number in range(1, 8):
        server.greeting = in_turn(*["Hello."] * number, bad, "Hello.")
        assert list((await found(server, PROBE)).missing()) == [], number
        server.greeting = in_turn(*["Hello."] * number, bad, bad, "Hello.")
        with pytest.raises(LlmFailed):
            await found(server, PROBE)


async def test_a_bad_second_does_not_make_a_server_a_modern_one(server: ScriptedLlm) -> None:
    server.greeting = in_turn(Said(status=500), "Hello.")
    with pytest.raises(LlmFailed, match="status 500"):
        await found(server)
    assert "max_tokens" in server.greeted[-1].body
    assert len(server.greeted) == 1


@pytest.mark.parametrize("said", [Said(status=401), Said(body=b"{}"), Said(choices=False)])
async def test_a_server_that_says_no_hello_is_not_found_out(server: ScriptedLlm, said: Said) -> None:
    server.greeting = always(said)
    with pytest.raises(LlmFailed):
        await found(server)


@pytest.mark.parametrize("oops", [Said(body=b"<html>Oops</html>"), Said(status=500)])
async def test_a_server_that_breaks_at_what_it_does_not_know_lacks_it(server: ScriptedLlm, oops: Said) -> None:
    def brittle(asked: Asked) -> Said:
        return oops if "response_format" in asked.body else Said()

    server.greeting = brittle
    can = await found(server)
    assert not can.json_schema
    assert can.top_logprobs
