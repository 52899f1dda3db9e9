from __future__ import annotations

import pytest

from scopegate.answering.answerer import Answerer
from scopegate.domain import Check, Decision
from scopegate.gate.probe import FeatureProbe
from scopegate.inference.embedder import Embedder
from scopegate.knowledge import Knowledge
from scopegate.settings import Settings, models_dir
from tests.unit.facts import fact
from tests.unit.gates import make_gatekeeper

PAINTER = "Ingrid Dahl painted the ceiling of Solvik church."
BORN = "Ingrid Dahl was born in Flekkefjord."
SPREAD = "Where was the painter of the ceiling of Solvik church born?"
UNKNOWN = "Which opera did Anneke Vos compose about Prague?"


@pytest.fixture
def answerer(knowledge: Knowledge, embedder: Embedder) -> Answerer:
    probe = FeatureProbe.load(models_dir() / "feature-probe" / "probe.json")
    return Answerer(make_gatekeeper(knowledge, embedder, probe, Settings()))


@pytest.fixture
async def filled(knowledge: Knowledge) -> None:
    await knowledge.add("default", [fact(PAINTER), fact(BORN), fact("Basalt is a volcanic rock.")])


@pytest.mark.usefixtures("filled")
async def test_answers_verbatim_with_what_it_cites(answerer: Answerer) -> None:
    answer = await answerer.answer(Check("Who painted the ceiling of Solvik church?"))
    assert (answer.decision, answer.answer, answer.refusal) == (Decision.ANSWER, PAINTER, None)
    assert [cited.text for cited in answer.evidence] == [PAINTER]
    assert set(answer.evidence) <= set(answer.verdict.evidence)


@pytest.mark.usefixtures("filled")
async def test_cites_nothing_beyond_the_evidence_of_the_verdict(answerer: Answerer) -> None:
    policy = {"mode": "observe"}
    two = await answerer.answer(Check(SPREAD, overrides=policy))
    assert {cited.text for cited in two.evidence} == {PAINTER, BORN}
    one = await answerer.answer(Check(SPREAD, overrides={**policy, "k": 1}))
    assert one.evidence == one.verdict.evidence
    assert len(one.evidence) == 1


@pytest.mark.usefixtures("filled")
async def test_refuses_with_a_sentence_for_the_user_and_cites_nothing(answerer: Answerer) -> None:
    answer = await answerer.answer(Check(UNKNOWN))
    assert (answer.decision, answer.answer, answer.evidence) == (Decision.REFUSAL, None, ())
    assert answer.refusal is not None
    assert "opera" in answer.refusal
    assert answer.reason == answer.verdict.reason


@pytest.mark.usefixtures("filled")
async def test_observing_answers_with_the_verdict_that_would_have_been(answerer: Answerer) -> None:
    answer = await answerer.answer(Check(UNKNOWN, overrides={"mode": "observe"}))
    assert answer.decision is Decision.ANSWER
    assert answer.verdict.would_refuse
    assert answer.answer in {PAINTER, BORN, "Basalt is a volcanic rock."}


async def test_observing_cannot_answer_from_nothing(answerer: Answerer) -> None:
    answer = await answerer.answer(Check(UNKNOWN, overrides={"mode": "observe"}))
    assert (answer.decision, answer.verdict.decision) == (Decision.REFUSAL, Decision.ANSWERABLE)
    assert answer.reason == "There is no evidence to answer from."
