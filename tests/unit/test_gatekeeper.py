from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from scopegate.domain import (
    Check,
    ConfusionType,
    Decision,
    GateName,
    GateStatus,
    Invalid,
    Mode,
    OnError,
    Passage,
    Policy,
    Speaker,
    Turn,
    Unavailable,
    UnknownScope,
    Verdict,
)
from scopegate.gate.gate import Seen
from scopegate.gate.gatekeeper import Gatekeeper
from scopegate.gate.probe import FeatureProbe
from scopegate.gate.retrieval import Case, Retriever
from scopegate.inference.batcher import Batcher
from scopegate.inference.embedder import Embedder
from scopegate.knowledge import Knowledge
from scopegate.settings import Settings, models_dir
from tests.unit.facts import SAMPLE, fact
from tests.unit.gates import make_gatekeeper

KNOWN = "Where was Marie Curie born?"
UNKNOWN = "Which opera did Anneke Vos compose about Prague?"
BOTH = (GateName.HARD, GateName.PROBE)


@pytest.fixture(scope="module")
def probe() -> FeatureProbe:
    return FeatureProbe.load(models_dir() / "feature-probe" / "probe.json")


@pytest.fixture
def gatekeeper(knowledge: Knowledge, embedder: Embedder, probe: FeatureProbe) -> Gatekeeper:
    return make_gatekeeper(knowledge, embedder, probe, Settings())


@pytest.fixture
async def filled(knowledge: Knowledge) -> int:
    """The sample facts are known; the scope's revision."""
    return (await knowledge.add("default", [fact(text) for text in SAMPLE])).revision


def break_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> float:
        raise ZeroDivisionError

    monkeypatch.setattr(FeatureProbe, "score", broken)


def delay_retrieval(monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(*_: object) -> Case:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(Retriever, "retrieve", endless)


def statuses(verdict: Verdict) -> list[GateStatus]:
    return [result.status for result in verdict.gates]


async def test_what_is_known_passes_every_gate(gatekeeper: Gatekeeper, filled: int, probe: FeatureProbe) -> None:
    verdict = await gatekeeper.check(Check(KNOWN))
    assert (verdict.decision, verdict.would_refuse, verdict.refused_by) == (Decision.ANSWERABLE, False, None)
    assert [(result.gate, result.passed, result.status) for result in verdict.gates] == [
        (GateName.HARD, True, GateStatus.OK),
        (GateName.PROBE, True, GateStatus.OK),
    ]
    assert verdict.gates[0].score == verdict.evidence[0].ratio
    assert verdict.gates[1].threshold == probe.threshold
    assert (verdict.confusion, verdict.revision, len(verdict.evidence)) == (None, filled, 4)
    assert verdict.reason.startswith("Every gate passed")


class Finder:
    """Finds the answer in a piece, with P 0.7."""

    name = "finder"
    threshold = 0.5
    depth = 1

    def __init__(self, found: str) -> None:
        self.found = found

    async def judge(self, case: Case) -> Seen:
        return Seen(0.7, places={piece.id: float(piece.id == self.found) for piece in case.reading})


@pytest.mark.parametrize(
    ("overrides", "explain", "ids"),
    [
        ({"k": 2}, False, ["p#1", "p#4"]),
        ({"k": 3}, False, ["p#1", "p#2", "p#4"]),
        ({"k": 1}, False, ["p#4"]),
        ({"k": 4}, False, ["p#1", "p#2", "p#4", "p#3"]),
        ({"k": 2, "probe_threshold": 0.8}, False, ["p#1", "p#2"]),
        ({"k": 2, "alpha": 0.001}, False, ["p#1", "p#2"]),
        ({"k": 2, "alpha": 0.001}, True, ["p#1", "p#2"]),
    ],
    ids=["last", "of more", "alone", "there already", "it refuses", "another refuses", "another refuses, explained"],
)
async def test_the_piece_that_a_gate_found_the_answer_in_is_evidence_of_what_passes(
    knowledge: Knowledge, embedder: Embedder, overrides: dict[str, Any], explain: bool, ids: list[str]
) -> None:
    text = "Marie Curie was born in Warsaw. Warsaw is a city. Its rivers are wide. Octopuses have three hearts."
    gatekeeper = make_gatekeeper(knowledge, embedder, Finder("p#4"), Settings())
    check = Check(KNOWN, passages=(Passage("p", text),), overrides=overrides, explain=explain)
    assert [piece.id for piece in (await gatekeeper.check(check)).evidence] == ids


@pytest.mark.usefixtures("filled")
async def test_the_first_refusal_ends_it_unless_all_are_to_be_explained(gatekeeper: Gatekeeper) -> None:
    verdict = await gatekeeper.check(Check(UNKNOWN))
    assert (verdict.decision, verdict.refused_by) == (Decision.REFUSAL, GateName.HARD)
    assert statuses(verdict) == [GateStatus.OK, GateStatus.SKIPPED]
    assert verdict.gates[1].passed is None
    assert verdict.confusion is not None
    assert verdict.confusion.type is ConfusionType.NOT_MENTIONED
    explained = await gatekeeper.check(Check(UNKNOWN, explain=True))
    assert statuses(explained) == [GateStatus.OK, GateStatus.OK]
    assert [result.passed for result in explained.gates] == [False, False]
    assert explained.refused_by is GateName.HARD


@pytest.mark.usefixtures("filled")
async def test_observing_tells_but_does_not_refuse(gatekeeper: Gatekeeper) -> None:
    verdict = await gatekeeper.check(Check(UNKNOWN, overrides={"mode": "observe"}))
    assert (verdict.decision, verdict.would_refuse) == (Decision.ANSWERABLE, True)
    assert verdict.refused_by is GateName.HARD
    assert verdict.confusion is not None


@pytest.mark.usefixtures("filled")
async def test_overrides_of_the_request_go_before_the_scope_and_the_scope_before_the_settings(
    gatekeeper: Gatekeeper, knowledge: Knowledge, probe: FeatureProbe
) -> None:
    defaults = Settings()
    assert gatekeeper.policy(knowledge.scope_of("default")) == Policy(
        defaults.alpha, probe.threshold, defaults.k, BOTH, 1, Mode.ENFORCE, OnError.REFUSE
    )
    policy = {"alpha": 0.001, "gates": ["probe", "hard"]}
    await knowledge.put_scope("default", policy=policy, overridable=None, embedder=None, reembed=False)
    held = gatekeeper.policy(knowledge.scope_of("default"))
    assert (held.alpha, held.gates, held.probe_threshold) == (0.001, BOTH, probe.threshold)
    assert (await gatekeeper.check(Check(KNOWN))).refused_by is GateName.HARD
    verdict = await gatekeeper.check(Check(KNOWN, overrides={"alpha": 4.0, "k": 1, "probe_threshold": 1.0}))
    assert [result.threshold for result in verdict.gates] == [4.0, 1.0]
    assert (verdict.refused_by, len(verdict.evidence)) == (GateName.PROBE, 1)


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.usefixtures("filled")
async def test_a_gate_that_breaks_refuses(
    gatekeeper: Gatekeeper, monkeypatch: pytest.MonkeyPatch, explain: bool
) -> None:
    break_probe(monkeypatch)
    verdict = await gatekeeper.check(Check(KNOWN, explain=explain))
    assert (verdict.decision, verdict.refused_by) == (Decision.REFUSAL, GateName.PROBE)
    assert statuses(verdict) == [GateStatus.OK, GateStatus.ERROR]
    assert (verdict.gates[1].passed, verdict.gates[1].score) == (False, None)
    assert "it broke" in verdict.reason


@pytest.mark.usefixtures("filled")
async def test_a_gate_that_breaks_passes_where_the_policy_says_so(
    gatekeeper: Gatekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_probe(monkeypatch)
    verdict = await gatekeeper.check(Check(KNOWN, overrides={"on_error": "answer"}))
    assert (verdict.decision, verdict.would_refuse) == (Decision.ANSWERABLE, False)
    assert (verdict.gates[1].passed, verdict.gates[1].status) == (True, GateStatus.ERROR)
    assert "probe gave no judgement" in verdict.reason


@pytest.mark.usefixtures("filled")
async def test_a_gate_that_breaks_fails_the_request_where_the_policy_says_so(
    gatekeeper: Gatekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_probe(monkeypatch)
    with pytest.raises(Unavailable, match="the probe gate gave no judgement: it broke"):
        await gatekeeper.check(Check(KNOWN, overrides={"on_error": "fail"}))


@pytest.mark.usefixtures("filled")
async def test_a_refusal_stands_though_a_later_gate_breaks(
    gatekeeper: Gatekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_probe(monkeypatch)
    verdict = await gatekeeper.check(Check(UNKNOWN, overrides={"on_error": "fail"}, explain=True))
    assert (verdict.decision, verdict.refused_by) == (Decision.REFUSAL, GateName.HARD)
    assert statuses(verdict) == [GateStatus.OK, GateStatus.ERROR]


@pytest.mark.parametrize(
    ("on_error", "decision"), [(OnError.REFUSE, Decision.REFUSAL), (OnError.ANSWER, Decision.ANSWERABLE)]
)
@pytest.mark.usefixtures("filled")
async def test_a_deadline_counts_as_the_policy_says(
    gatekeeper: Gatekeeper, monkeypatch: pytest.MonkeyPatch, on_error: OnError, decision: Decision
) -> None:
    delay_retrieval(monkeypatch)
    verdict = await gatekeeper.check(Check(KNOWN, deadline_ms=30, overrides={"on_error": on_error}))
    assert verdict.decision is decision
    assert verdict.gates[0].status is GateStatus.DEADLINE
    assert (verdict.evidence, verdict.revision, verdict.confusion) == ((), None, None)


@pytest.mark.usefixtures("filled")
async def test_a_deadline_fails_the_request_where_the_policy_says_so(
    gatekeeper: Gatekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay_retrieval(monkeypatch)
    with pytest.raises(Unavailable, match="the hard gate gave no judgement: it ran past the deadline"):
        await gatekeeper.check(Check(KNOWN, deadline_ms=30, overrides={"on_error": "fail"}))


async def test_a_revision_that_does_not_come_in_time_is_unavailable(gatekeeper: Gatekeeper, filled: int) -> None:
    assert (await gatekeeper.check(Check(KNOWN, min_revision=filled))).revision == filled
    with pytest.raises(Unavailable, match=f"did not reach revision {filled + 1}"):
        await gatekeeper.check(Check(KNOWN, min_revision=filled + 1, deadline_ms=50))


async def test_an_empty_scope_refuses_and_an_unknown_one_is_unknown(gatekeeper: Gatekeeper) -> None:
    verdict = await gatekeeper.check(Check(KNOWN, explain=True))
    assert (verdict.decision, verdict.refused_by, verdict.evidence) == (Decision.REFUSAL, GateName.HARD, ())
    assert (verdict.gates[0].score, verdict.gates[1].score) == (None, 0.0)
    assert verdict.reason == "There is no fact in scope 'default'."
    with pytest.raises(UnknownScope):
        await gatekeeper.check(Check(KNOWN, scope="elsewhere"))


async def test_a_fact_that_is_removed_while_it_is_checked(
    gatekeeper: Gatekeeper, knowledge: Knowledge, filled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    retrieve = Retriever.retrieve

    async def removing(retriever: Retriever, *what: object) -> Case:
        case = await retrieve(retriever, *what)  # type: ignore[arg-type]
        await knowledge.remove("default", case.evidence[0].id)
        return case

    monkeypatch.setattr(Retriever, "retrieve", removing)
    during = await gatekeeper.check(Check(KNOWN))
    assert (during.decision, during.revision) == (Decision.ANSWERABLE, filled)
    assert during.evidence[0].text == SAMPLE[0]
    assert during.gates[0].detail == {"fact_id": during.evidence[0].id}
    monkeypatch.undo()
    after = await gatekeeper.check(Check(KNOWN))
    assert (after.decision, after.revision) == (Decision.REFUSAL, filled + 1)
    assert during.evidence[0].id not in {held.id for held in after.evidence}


async def test_passages_that_come_again_are_not_embedded_again(
    gatekeeper: Gatekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    outputs = Batcher.outputs

    async def counting(self: Batcher[Any, Any], given: Sequence[Any], *, bulk: bool) -> list[Any]:
        encoded.append(len(given))
        return await outputs(self, given, bulk=bulk)

    monkeypatch.setattr(Batcher, "outputs", counting)
    check = Check(KNOWN, passages=(Passage("p", " ".join(SAMPLE)),))
    first = await gatekeeper.check(check)
    assert sum(encoded) == 1 + len(SAMPLE)
    second = await gatekeeper.check(check)
    assert sum(encoded) == 1 + len(SAMPLE)
    assert first.evidence == second.evidence
    assert first.revision is None


async def test_passages_of_too_many_sentences_are_invalid(
    knowledge: Knowledge, embedder: Embedder, probe: FeatureProbe
) -> None:
    settings = Settings(max_sentences=3, on_error=OnError.ANSWER)
    gatekeeper = make_gatekeeper(knowledge, embedder, probe, settings)
    with pytest.raises(Invalid, match="more than 3 sentences"):
        await gatekeeper.check(Check(KNOWN, passages=(Passage("p", " ".join(SAMPLE)),)))


@pytest.mark.parametrize("mark", ["\uff9e", "\uff9f"])
async def test_a_letter_that_is_only_a_mark_breaks_no_gate(
    gatekeeper: Gatekeeper, knowledge: Knowledge, mark: str
) -> None:
    await knowledge.add("default", [fact(f"{SAMPLE[0]} {mark}")])
    for question in (mark, f"{KNOWN} {mark}"):
        verdict = await gatekeeper.check(Check(question, explain=True))
        assert statuses(verdict) == [GateStatus.OK, GateStatus.OK]
    assert (await gatekeeper.check(Check(mark))).confusion is not None


@pytest.mark.usefixtures("filled")
async def test_a_refusal_stands_though_its_confusion_is_not_found(
    gatekeeper: Gatekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("scopegate.gate.gatekeeper.confusion", broken)
    verdict = await gatekeeper.check(Check(UNKNOWN))
    assert (verdict.decision, verdict.confusion) == (Decision.REFUSAL, None)


@pytest.mark.parametrize(("below", "digits"), [(0.001, 3), (0.1, 2)])
@pytest.mark.usefixtures("filled")
async def test_a_reason_does_not_show_a_narrow_miss_as_a_tie(
    gatekeeper: Gatekeeper, monkeypatch: pytest.MonkeyPatch, below: float, digits: int
) -> None:
    threshold = 0.752
    monkeypatch.setattr(FeatureProbe, "score", lambda *_: threshold - below)
    verdict = await gatekeeper.check(Check(KNOWN, overrides={"probe_threshold": threshold}))
    said = f"P(in scope) is {threshold - below:.{digits}f}, the threshold is {threshold:.{digits}f}."
    assert verdict.reason.endswith(said)


@pytest.mark.usefixtures("filled")
async def test_history_is_known_to_the_confusion(gatekeeper: Gatekeeper) -> None:
    check = Check("When was it composed?")
    alone = (await gatekeeper.check(check)).confusion
    told = (
        await gatekeeper.check(dataclasses.replace(check, history=(Turn(Speaker.USER, "Anneke Vos wrote an opera."),)))
    ).confusion
    assert alone is not None
    assert told is not None
    assert (alone.type, told.type) == (ConfusionType.AMBIGUOUS, ConfusionType.NOT_MENTIONED)


@pytest.mark.usefixtures("filled")
async def test_a_gate_that_is_not_there_cannot_be_asked_for(gatekeeper: Gatekeeper) -> None:
    with pytest.raises(Invalid, match="'soft' is not available"):
        await gatekeeper.check(Check(KNOWN, overrides={"gates": ("hard", "soft")}))


@pytest.mark.usefixtures("filled")
async def test_a_scope_whose_gate_is_gone_refuses(gatekeeper: Gatekeeper, knowledge: Knowledge) -> None:
    await knowledge.put_scope(
        "default", policy={"gates": ["hard", "soft"]}, overridable="keep", embedder=None, reembed=False
    )
    verdict = await gatekeeper.check(Check(KNOWN))
    assert (verdict.refused_by, verdict.gates[1].status) == (GateName.SOFT, GateStatus.ERROR)
    assert "not available here" in verdict.reason


@pytest.mark.usefixtures("filled")
async def test_a_gate_that_broke_blames_nothing_on_the_question(
    gatekeeper: Gatekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_probe(monkeypatch)
    verdict = await gatekeeper.check(Check(KNOWN))
    assert (verdict.refused_by, verdict.confusion) == (GateName.PROBE, None)
