"""The soft gate and the condenser in the gatekeeper: one scripted LLM, real knowledge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from scopegate.domain import Check, ConfusionType, Decision, GateName, GateStatus, Span, Speaker, Turn
from scopegate.gate.condense import Condenser
from scopegate.gate.gatekeeper import Gatekeeper
from scopegate.gate.policy import default_policy
from scopegate.gate.retrieval import Retriever
from scopegate.gate.soft import SoftGate
from scopegate.inference.embedder import Embedder
from scopegate.knowledge import Knowledge
from scopegate.settings import Settings
from tests.scripted import Asked, Said, ScriptedLlm, always, by_prompt, llm_at
from tests.unit.facts import SAMPLE, fact

WHOLE = "Why did Marie Curie open a bakery in Warsaw?"
CHECK = Check(
    "And why did she open a 🥐 bakery in Warsaw?",
    history=(Turn(Speaker.USER, "Where was Marie Curie born?"), Turn(Speaker.ASSISTANT, "In Warsaw.")),
)


def judges(asked: Asked) -> str:
    assert f"<question>{WHOLE}</question>" in asked.user
    return (
        "She did not.\nConfusion: false_premise\nPhrase: Marie Curie\nPhrase: bakery\n"
        "Explanation: She was a physicist.\nAnswerable: no"
    )


@pytest.fixture
def server() -> Iterator[ScriptedLlm]:
    with ScriptedLlm(by_prompt({"You rewrite": always(WHOLE), "You judge": judges})) as server:
        yield server


@pytest.fixture
async def gatekeeper(knowledge: Knowledge, embedder: Embedder, server: ScriptedLlm) -> AsyncIterator[Gatekeeper]:
    await knowledge.add("default", [fact(text) for text in SAMPLE])
    settings = Settings()
    async with llm_at(server) as llm:
        retriever = Retriever(embedder, settings, Condenser(llm))
        defaults = default_policy(settings, [GateName.SOFT], 0.5)
        yield Gatekeeper(knowledge, retriever, [SoftGate(llm)], defaults, settings.llm_deadline_ms)


async def test_spans_point_into_the_question_as_it_was_asked(gatekeeper: Gatekeeper) -> None:
    verdict = await gatekeeper.check(CHECK)
    assert (verdict.decision, verdict.refused_by) == (Decision.REFUSAL, GateName.SOFT)
    assert verdict.gates[0].detail["standalone_question"] == WHOLE
    assert verdict.confusion is not None
    assert verdict.confusion.type is ConfusionType.FALSE_PREMISE
    # "Marie Curie" is the condenser's word, not the asker's.
    assert verdict.confusion.spans == (Span(25, 31, "bakery"),)
    assert CHECK.question[25:31] == "bakery"
    assert verdict.confusion.explanation == "She was a physicist."


@pytest.mark.parametrize(
    ("scripts", "cause"),
    [
        ({"You rewrite": "Sorry, no.", "You judge": "Answerable: yes"}, "stand alone"),
        ({"You rewrite": WHOLE, "You judge": "It certainly can be answered!"}, "0 of the LLM's 1 votes"),
        ({"You rewrite": WHOLE, "You judge": Said(status=500)}, "status 500"),
    ],
)
async def test_what_cannot_be_judged_is_refused_with_the_cause(
    gatekeeper: Gatekeeper, server: ScriptedLlm, scripts: dict[str, Any], cause: str
) -> None:
    server.script = by_prompt({marker: always(said) for marker, said in scripts.items()})
    verdict = await gatekeeper.check(CHECK)
    assert (verdict.decision, verdict.gates[0].status) == (Decision.REFUSAL, GateStatus.ERROR)
    assert cause in verdict.gates[0].detail["cause"]
