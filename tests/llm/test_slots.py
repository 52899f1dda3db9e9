"""The probe inside the LLM's engine, as a gate of the service reads it; a scripted LLM speaks for the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scopegate.domain import Invalid
from scopegate.gate.gate import GateBroken
from scopegate.gate.slots import SlotProbe
from scopegate.llm.client import LlmFailed
from scopegate.probe_file import Kind, Position
from scopegate.prompts import load_prompt
from tests.llm.cases import case
from tests.llm.probe_files import slot_probe
from tests.scripted import Said, ScriptedLlm, always, llm_at

ANSWERABLE = "answerable@1"
FERRY = "The ferry leaves Port Alder at 8:15."
ASKED = case("When does the ferry leave Port Alder?", FERRY, "The crossing takes an hour.")


@pytest.mark.parametrize(("logit", "probability"), [(0.0, 0.5), (2.0, 0.8808), (-30.0, 0.0), (30.0, 1.0)])
async def test_reads_the_probability_off_one_token(logit: float, probability: float) -> None:
    file = slot_probe(ANSWERABLE)
    with ScriptedLlm(probe=file, logit=lambda _: logit) as server:
        async with llm_at(server) as llm:
            assert (await SlotProbe(file, llm).judge(ASKED)).score == pytest.approx(probability, abs=1e-4)
    (request,) = server.asked
    assert request.body["max_tokens"] == 1
    assert request.body["logprob_token_ids"] == [997, 998, 999]
    assert "continue_final_message" not in request.body
    turns = load_prompt("answerable").render(question=ASKED.question, passages=[each.text for each in ASKED.reading])
    assert request.body["messages"] == [{"role": turn.role, "content": turn.content} for turn in turns]


async def test_judges_what_the_prompt_shows() -> None:
    file = slot_probe(ANSWERABLE)
    with ScriptedLlm(probe=file, logit=lambda prompt: 3.0 if FERRY in prompt else -3.0) as server:
        async with llm_at(server) as llm:
            probe = SlotProbe(file, llm)
            assert (await probe.judge(ASKED)).score > 0.9
            assert (await probe.judge(case(ASKED.question, "Basalt is a volcanic rock."))).score < 0.1
            assert len(server.asked) == 2
            assert (await probe.judge(case(ASKED.question))).score == 0.0
            assert len(server.asked) == 2


@pytest.mark.parametrize("position", [Position.UNUSED_TOKEN, Position.EOS])
async def test_puts_the_token_of_its_position_after_the_prompt(position: Position) -> None:
    file = slot_probe(ANSWERABLE, position=position, token="<|reserved_special_token_0|>")
    with ScriptedLlm(probe=file, logit=lambda _: 0.0) as server:
        async with llm_at(server) as llm:
            await SlotProbe(file, llm).judge(ASKED)
    body = server.asked[0].body
    assert body["messages"][-1] == {"role": "assistant", "content": "<|reserved_special_token_0|>"}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


async def test_a_server_that_begins_no_reply_would_show_another_position() -> None:
    file = slot_probe(ANSWERABLE, position=Position.EOS, token="</s>")
    with ScriptedLlm(probe=file, logit=lambda _: 0.0) as server:
        server.prefill = False
        async with llm_at(server) as llm:
            with pytest.raises(GateBroken, match="cannot begin a reply"):
                await SlotProbe(file, llm).judge(ASKED)
    assert server.asked == []


async def test_slots_that_are_missing_masked_or_foreign_are_a_broken_gate() -> None:
    file = slot_probe(ANSWERABLE)
    with ScriptedLlm(probe=file, logit=lambda _: 0.0) as server:
        async with llm_at(server) as llm:
            probe = SlotProbe(file, llm)
            server.masked = True
            with pytest.raises(GateBroken, match="masked"):
                await probe.judge(ASKED)
            server.token_logprobs = False
            with pytest.raises(GateBroken, match="gave no logprob"):
                await probe.judge(ASKED)
            server.script = always(Said(status=500))
            with pytest.raises(LlmFailed, match="500"):
                await probe.judge(ASKED)
            server.masked, server.token_logprobs, server.script = False, True, always("yes")
            foreign = SlotProbe(replace(file, fingerprint=18.5), llm)
            with pytest.raises(GateBroken, match="fingerprint"):
                await foreign.judge(ASKED)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"prompt": "answerable@0"}, "this version has 'answerable@1'"),
        ({"prompt": "answer_text/basic@99"}, "this version has 'answer_text/basic@"),
        ({"prompt": "answer_text/eloquent@1"}, "method to be one of"),
        ({"prompt": "none@1"}, "there is no prompt 'none'"),
        ({"prompt": ""}, "there is no prompt ''"),
        ({"prompt": load_prompt("recover_claims").id}, "not about a question"),
        ({"kind": Kind.SENTENCE_PAIR}, "not of hidden states"),
    ],
)
async def test_a_probe_of_another_prompt_or_kind_is_refused_at_once(changes: dict[str, Any], wrong: str) -> None:
    with ScriptedLlm() as server:
        async with llm_at(server) as llm:
            with pytest.raises(Invalid, match=wrong):
                SlotProbe(slot_probe(**{"prompt": ANSWERABLE} | changes), llm)
