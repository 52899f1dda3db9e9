from __future__ import annotations

import json
from pathlib import Path

import pytest

from scopegate.domain import Invalid
from scopegate.gate.probe import FeatureProbe
from scopegate.inference.encoder import Encoder
from scopegate.settings import models_dir
from scopegate.words import WordCounts
from tests.unit.evidence import evidence

FILE = models_dir() / "feature-probe" / "probe.json"

KNOWN = [
    "Ingrid Dahl founded the Solvik dairy in 1910.",
    "The Solvik dairy lies at the mouth of the Otra river.",
    "The dairy makes eleven kinds of cheese.",
    "Its brown cheese won a gold medal in Paris.",
]


@pytest.fixture(scope="module")
def probe() -> FeatureProbe:
    return FeatureProbe.load(FILE)


def passed(probe: FeatureProbe, encoder: Encoder, question: str) -> bool:
    counts = WordCounts()
    for fact in KNOWN:
        counts.add(fact)
    return probe.score(question, evidence(encoder, question, KNOWN), counts.rarity) >= probe.threshold


@pytest.mark.parametrize(
    "question",
    [
        "Who founded the Solvik dairy?",
        "When was the Solvik dairy founded?",
        "Where is the Solvik dairy?",
        "How many kinds of cheese does the dairy make?",
        "Was the Solvik dairy founded in 1950?",
        "Did the brown cheese win a medal in Paris?",
    ],
)
def test_lets_through_what_is_known(probe: FeatureProbe, encoder: Encoder, question: str) -> None:
    assert passed(probe, encoder, question)


@pytest.mark.parametrize(
    "question",
    [
        "Who founded the Rjukan power plant?",
        "When did the brewery of Rjukan burn down?",
        "How tall is the Eiffel tower in Paris?",
        "What does a litre of milk cost in Sweden?",
        "Which opera did Ingrid Dahl sing in Vienna?",
    ],
)
def test_refuses_what_is_not(probe: FeatureProbe, encoder: Encoder, question: str) -> None:
    assert not passed(probe, encoder, question)


def test_sees_nothing_where_there_is_nothing(probe: FeatureProbe) -> None:
    assert probe.score("Who founded Solvik?", [], WordCounts().rarity) == 0.0


def test_looks_no_further_than_its_depth(probe: FeatureProbe, encoder: Encoder) -> None:
    question = "Who founded the Solvik dairy?"
    found = evidence(encoder, question, [*KNOWN, *(f"Note {number} is about rocks." for number in range(20))])
    rarity = WordCounts().rarity
    assert probe.score(question, found, rarity) == probe.score(question, found[: probe.depth], rarity)


@pytest.mark.parametrize("broken", ["", "[]", "{}", '{"features": ["other"]}'])
def test_a_file_that_is_no_probe_is_refused(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "probe.json"
    file.write_text(broken)
    with pytest.raises(Invalid, match="feature"):
        FeatureProbe.load(file)


def test_a_probe_of_other_features_is_refused(tmp_path: Path) -> None:
    model = json.loads(FILE.read_text())
    model["features"][0] = "something_else"
    file = tmp_path / "probe.json"
    file.write_text(json.dumps(model))
    with pytest.raises(Invalid, match="other features"):
        FeatureProbe.load(file)
    with pytest.raises(Invalid, match="not a feature probe"):
        FeatureProbe.load(tmp_path / "missing.json")
