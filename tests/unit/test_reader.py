"""The reader that ships: what it makes of pairs, and that nothing else changes that."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scopegate.domain import Evidence
from scopegate.gate.probe import FeatureProbe
from scopegate.gate.reader_probe import ReaderProbe
from scopegate.gate.retrieval import Case
from scopegate.inference.reader import MAX_TOKENS, OnnxReader, Reader
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


def test_a_passage_is_cut_where_the_room_ends_and_the_question_never(model: OnnxReader) -> None:
    question = "Who built it? " * 10
    pair = model.pair(question, "stone " * 1000)
    assert len(pair) == MAX_TOKENS
    assert sum(pair.passage) == model.room(question)
    assert model.lengths([question, "stone " * 1000]) == [len(pair) - 3 - sum(pair.passage), 1000]


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
    assert seen.detail == {"window": ["m#1", "m#3"]}
    assert max(seen.places, key=lambda name: seen.places[name]) == "m#2"
    assert np.isclose(sum(seen.places.values()), 1.0)
