"""The reader that ships: what it makes of pairs, and that nothing else changes that."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scopegate.domain import Check, Decision, Evidence, GateName, GateStatus, Invalid, OnError, Passage
from scopegate.gate.probe import FeatureProbe
from scopegate.gate.reader_probe import ReaderProbe
from scopegate.gate.retrieval import Case
from scopegate.inference.reader import MOST_TOKENS, OnnxReader, Reader, Reading
from scopegate.services import Services
from scopegate.settings import Settings, models_dir
from scopegate.words import WordCounts

FOLDER = models_dir() / "minilm-reader"
HARBOUR = (
    "The harbour museum opened in 1911.",
    "It was built by Astrid Holm, an engineer from Bergen.",
    "Every Friday the herring auction takes place on its northern pier.",
)
PASSAGE = " ".join(HARBOUR)


@pytest.fixture(scope="module")
def model() -> OnnxReader:
    return OnnxReader(FOLDER)


def logit(model: OnnxReader, question: str, passage: str = PASSAGE) -> float:
    (read,) = model.read([model.pair(question, passage)])
    return read.logit


@pytest.mark.parametrize(
    ("answered", "not_answered"),
    [
        ("Who built the harbour museum?", "Who burnt the harbour museum down?"),
        ("When did the harbour museum open?", "When did the harbour museum close?"),
        ("On which day is the herring auction?", "How much does the herring cost?"),
    ],
)
def test_it_tells_what_is_answered_from_what_is_only_about_the_same(
    model: OnnxReader, answered: str, not_answered: str
) -> None:
    assert logit(model, answered) > logit(model, not_answered) + 1.0


def test_places_are_where_the_answer_begins(model: OnnxReader) -> None:
    (read,) = model.read([model.pair("Who built the harbour museum?", PASSAGE)])
    best = max(read.places, key=lambda place: place[1])
    assert PASSAGE[best[0] :].startswith("Astrid")
    assert sum(share for _, share in read.places) == pytest.approx(1.0)


def test_a_reading_does_not_depend_on_its_neighbours(model: OnnxReader) -> None:
    pairs = [model.pair("Who built it?", " ".join(HARBOUR[:count]) + " Stone." * count) for count in (1, 2, 3)]
    for pair, read in zip(pairs, model.read(pairs), strict=True):
        (alone,) = model.read([pair])
        assert read.logit == pytest.approx(alone.logit, abs=1e-3)


def test_a_passage_is_cut_where_the_model_ends_and_the_question_never(model: OnnxReader) -> None:
    question = "Who built it? " * 10
    pair = model.pair(question, "stone " * 1000)
    assert len(pair) == MOST_TOKENS
    assert model.lengths([question, "stone " * 1000]) == [len(pair) - 3 - sum(pair.passage), 1000]


@pytest.mark.parametrize(("words", "room"), [(17, 300), (221, 96), (413, 96), (450, 59), (520, -11)])
def test_a_long_question_leaves_less_room(model: OnnxReader, words: int, room: int) -> None:
    assert model.room("stone " * words) == room


def test_a_special_token_in_a_text_is_what_somebody_wrote(model: OnnxReader) -> None:
    pair = model.pair("Who built [SEP] it?", f"It says [SEP] and [CLS]. {PASSAGE}")
    plain = model.pair("Who built it?", PASSAGE)
    assert [pair.ids.count(special) for special in (101, 102)] == [plain.ids.count(special) for special in (101, 102)]
    assert pair.types.index(1) == pair.passage.index(1)


def test_no_passage_holds_no_answer(model: OnnxReader) -> None:
    assert logit(model, "Who built it?", "") == -math.inf


async def test_the_shipped_probe_names_its_window_and_where_the_answer_stands() -> None:
    reader = Reader(OnnxReader(FOLDER), Settings())
    features = FeatureProbe.load(models_dir() / "feature-probe" / "probe.json")
    probe = ReaderProbe.load(FOLDER / "probe.json", reader, features)
    counts = WordCounts()
    for text in HARBOUR:
        counts.add(text)
    evidence = tuple(Evidence(f"m#{at}", text, 1.0, 0.8, 0.8, None) for at, text in enumerate(HARBOUR, 1))
    try:
        seen = await probe.judge(Case("Who built the harbour museum?", evidence, evidence, counts.rarity, None))
    finally:
        await reader.stop()
    assert seen.score > probe.threshold
    assert seen.detail == {"window": ["m#1", "m#2", "m#3"]}
    assert max(seen.places, key=lambda name: seen.places[name]) == "m#2"
    assert np.isclose(sum(seen.places.values()), 1.0)


async def test_it_judges_by_default_and_its_sentence_is_the_answer(tmp_path: Path) -> None:
    services = Services(Settings(data_dir=tmp_path))
    async with services.running():
        await services.knowledge.ready(30)
        check = Check("Who built the harbour museum?", passages=(Passage("m", PASSAGE),), overrides={"k": 1})
        answer = await services.answerer.answer(check)
    assert answer.decision is Decision.ANSWER
    assert answer.answer == HARBOUR[1]
    assert [piece.id for piece in answer.verdict.evidence] == ["m#2"]
    probe = next(result for result in answer.verdict.gates if result.gate is GateName.PROBE)
    assert probe.detail == {"probe": "reader-1", "window": ["m#1", "m#2", "m#3"]}


async def test_a_reader_that_breaks_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services = Services(Settings(data_dir=tmp_path))
    check = Check("Who built the harbour museum?", passages=(Passage("m", PASSAGE),))
    assert services.reader is not None

    async def broken(question: str, passages: Sequence[str]) -> list[Reading]:
        raise RuntimeError

    monkeypatch.setattr(services.reader, "read", broken)
    async with services.running():
        await services.knowledge.ready(30)
        verdict = await services.gatekeeper.check(check)
        lenient = await services.gatekeeper.check(replace(check, overrides={"on_error": OnError.ANSWER}))
    assert (verdict.decision, verdict.gates[-1].status) == (Decision.REFUSAL, GateStatus.ERROR)
    assert lenient.decision is Decision.ANSWERABLE


def test_the_feature_probe_can_be_had_instead(tmp_path: Path) -> None:
    assert Services(Settings(data_dir=tmp_path, probe="feature-probe")).reader is None


async def test_a_reader_that_is_late_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services = Services(Settings(data_dir=tmp_path))
    check = Check("Who built the harbour museum?", passages=(Passage("m", PASSAGE),))
    assert services.reader is not None

    async def slow(question: str, passages: Sequence[str]) -> list[Reading]:
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr(services.reader, "read", slow)
    async with services.running():
        await services.knowledge.ready(30)
        verdict = await services.gatekeeper.check(replace(check, deadline_ms=300))
    assert (verdict.decision, verdict.gates[-1].status) == (Decision.REFUSAL, GateStatus.DEADLINE)


@pytest.mark.parametrize(
    ("probe", "says"), [("feature-prob", "it is minilm-reader, feature-probe"), ("no.json", "no.json is not a feature")]
)
def test_a_probe_that_is_not_there_is_refused(tmp_path: Path, probe: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        Services(Settings(data_dir=tmp_path, probe=probe))
