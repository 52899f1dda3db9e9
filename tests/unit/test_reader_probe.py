"""The probe that reads: which window decides, what it says, and how it fails. The model is scripted, not the probe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from scopegate.domain import Evidence, Invalid, Overloaded
from scopegate.gate.gate import GateBroken, Seen
from scopegate.gate.probe import FeatureProbe
from scopegate.gate.reader_probe import ReaderProbe
from scopegate.gate.retrieval import Case
from scopegate.inference.reader import Pair, Reader, Reading, reading
from scopegate.settings import Settings, models_dir


class Marked:
    """Finds the answer wherever a passage has the word HERE; a token is a word."""

    fingerprint = "marked"

    def __init__(self) -> None:
        self.passages: list[str] = []

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def room(self, question: str) -> int:
        return 60 - len(question.split())

    def pair(self, question: str, passage: str) -> Pair:
        self.passages.append(passage)
        words = passage.split()
        begins = [passage.index(word) if "HERE" in word else 0 for word in words]
        return Pair([1, *("HERE" in word for word in words)], (), [0, *(1 for _ in words)], [0, *begins])

    def read(self, pairs: Sequence[Pair]) -> list[Reading]:
        return [_read(pair) for pair in pairs]


def _read(pair: Pair) -> Reading:
    marked = [at for at in range(1, len(pair)) if pair.ids[at]]
    return Reading(4.0 if marked else -4.0, tuple((pair.begins[at], 1 / len(marked)) for at in marked))


@pytest.fixture(scope="module")
def features() -> FeatureProbe:
    return FeatureProbe.load(models_dir() / "feature-probe" / "probe.json")


@pytest.fixture
def model() -> Marked:
    return Marked()


@pytest.fixture
async def reader(model: Marked) -> Iterator[Reader]:  # type: ignore[misc]
    made = Reader(model, Settings())
    yield made
    await made.stop()


def case(*texts: str, question: str = "Who is it?", revision: int | None = None) -> Case:
    held = tuple(Evidence(f"p#{at}", text, 1.0, 0.5, 0.5, None) for at, text in enumerate(texts, 1))
    return Case(question, held[:2], held, lambda _: 1.0, revision)


LONG = "word " * 30


async def test_the_likeliest_window_decides(reader: Reader, model: Marked) -> None:
    probe = ReaderProbe.uncalibrated(reader)
    seen = await probe.judge(case(f"{LONG}.", f"{LONG}.", f"{LONG} HERE."))
    assert seen.score == pytest.approx(1 / (1 + np.exp(-4.0)))
    assert seen.detail == {"window": ["p#3"]}
    assert len(model.passages) == 3
    assert (await probe.judge(case(f"{LONG}.", f"{LONG}."))).score == pytest.approx(1 / (1 + np.exp(4.0)))


async def test_the_places_of_the_answer_are_told_by_piece(reader: Reader) -> None:
    seen = await ReaderProbe.uncalibrated(reader).judge(case("Not so.", "HERE, HERE1, look.", "HERE2."))
    assert seen.places == pytest.approx({"p#1": 0.0, "p#2": 2 / 3, "p#3": 1 / 3})
    seen = await ReaderProbe.uncalibrated(reader).judge(case("Not so.", "HERE."))
    assert seen.places == {"p#1": 0.0, "p#2": 1.0}


async def test_a_token_that_begins_with_the_space_between_two_pieces_is_of_the_second(
    model: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "read", lambda pairs: [Reading(4.0, ((7, 0.75), (8, 0.25)))])
    reader = Reader(model, Settings())
    seen = await ReaderProbe.uncalibrated(reader).judge(case("Not so.", "HERE."))
    await reader.stop()
    assert seen.places == {"p#1": 0.0, "p#2": 1.0}


async def test_a_model_that_does_not_say_where_has_no_places(model: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "read", lambda pairs: [Reading(4.0, ())])
    reader = Reader(model, Settings())
    assert (await ReaderProbe.uncalibrated(reader).judge(case("Not so.", "HERE."))).places == {}
    await reader.stop()


async def test_a_model_that_gives_no_number_breaks_the_gate(model: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "read", lambda pairs: [Reading(float("nan"), ()) for _ in pairs])
    reader = Reader(model, Settings())
    with pytest.raises(GateBroken, match="no number"):
        await ReaderProbe.uncalibrated(reader).judge(case("It is HERE."))
    await reader.stop()


async def test_of_very_much_the_closest_windows_are_read(reader: Reader, model: Marked) -> None:
    held = tuple(Evidence(f"p#{at}", f"{LONG}{at}.", 1.0, 2.0 - at / 100, 2.0 - at / 100, None) for at in range(1, 31))
    await ReaderProbe.uncalibrated(reader).judge(Case("Who?", held[:2], held, lambda _: 1.0, None))
    assert sorted(model.passages) == sorted(piece.text for piece in held[-4:])


async def test_what_no_window_holds_is_read_in_parts(reader: Reader, model: Marked) -> None:
    long = " ".join(f"word{at}" for at in range(130)) + " HERE."
    seen = await ReaderProbe.uncalibrated(reader).judge(case("Not so.", long))
    assert seen.detail == {"window": ["p#2"]}
    assert seen.places == {"p#2": 1.0}
    assert all(len(passage.split()) <= 57 for passage in model.passages)
    assert {word for passage in model.passages for word in passage.split()} == {"Not", "so.", *long.split()}


async def test_a_long_fact_hides_no_other(reader: Reader, model: Marked) -> None:
    long = Evidence("a", " ".join(["word"] * 600), 1.0, 0.3, 0.3, None)
    short = Evidence("b", "It is HERE.", 1.0, 0.4, 0.4, None)
    held = (long, short)
    seen = await ReaderProbe.uncalibrated(reader).judge(Case("Who is it?", held, held, lambda _: 1.0, 1))
    assert seen.places["b"] == 1.0
    assert len(model.passages) == 4
    assert max(len(passage.split()) for passage in model.passages) <= 57


async def test_a_text_without_spaces_is_read_in_parts(
    reader: Reader, model: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "lengths", lambda texts: [len(text) for text in texts])
    await ReaderProbe.uncalibrated(reader).judge(case("灯" * 100))
    assert {len(passage) for passage in model.passages} == {50}


async def test_of_a_scope_the_best_facts_are_read_as_one_text(reader: Reader, model: Marked) -> None:
    held = tuple(Evidence(f"{at}", f"Fact {at}.", 1.0, at / 10, at / 10, None) for at in range(8))
    seen = await ReaderProbe.uncalibrated(reader).judge(Case("Who?", held, held, lambda _: 1.0, 3))
    assert model.passages == ["Fact 0. Fact 1. Fact 2. Fact 3."]
    assert seen.detail == {"window": ["0", "1", "2", "3"]}


async def test_several_passages_are_read_together_too(model: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer may need a sentence of each."""
    monkeypatch.setattr(model, "read", lambda pairs: [Reading(float(len(pair)), ()) for pair in pairs])
    reader = Reader(model, Settings())
    near, far = (Evidence(f"{name}#1", f"{name} HERE.", 1.0, 0.5, 0.5, None) for name in "pq")
    seen = await ReaderProbe.uncalibrated(reader).judge(Case("Who?", (near, far), (near, far), lambda _: 1.0, None))
    assert sorted(model.passages) == ["p HERE.", "p HERE. q HERE.", "q HERE."]
    assert seen.detail == {"window": ["p#1", "q#1"]}
    await reader.stop()


async def test_more_than_may_wait_is_refused(model: Marked) -> None:
    reader = Reader(model, Settings(read_queue=2))
    with pytest.raises(Overloaded, match="reader's queue is full"):
        await ReaderProbe.uncalibrated(reader).judge(case(f"{LONG}.", f"{LONG}.", f"{LONG}."))
    assert reader.waiting == 0
    await reader.stop()


async def test_nothing_to_read_is_nothing_known(reader: Reader) -> None:
    assert await ReaderProbe.uncalibrated(reader).judge(case()) == Seen(0.0, {"window": []})


async def test_a_question_that_leaves_no_room_breaks_the_gate(reader: Reader) -> None:
    with pytest.raises(GateBroken, match="question is so long"):
        await ReaderProbe.uncalibrated(reader).judge(case("It is HERE.", question="who " * 40))


async def test_both_judges_count_as_calibrated(reader: Reader, features: FeatureProbe) -> None:
    model = {"name": "both", "reader": "marked", "features": features.name, "depth": 4, "threshold": 0.6}
    asked = case("It is HERE.")
    odds = features.logit(asked.question, asked.evidence, asked.rarity)
    weights = {"reader_weight": 0.5, "feature_weight": 0.25, "windows_weight": -2.0, "feature_windows_weight": 0.125}
    probe = ReaderProbe(model | weights | {"bias": -1.0}, reader, features)
    expected = 0.5 * 4.0 + 0.25 * odds - 1.0
    assert (await probe.judge(asked)).score == pytest.approx(1 / (1 + np.exp(-expected)))
    longer = case(f"{LONG} HERE.", f"{LONG}.")
    odds = features.logit(longer.question, longer.evidence, longer.rarity)
    expected = 0.5 * 4.0 + (0.25 + 0.125 * np.log(2)) * odds - 2.0 * np.log(2) - 1.0
    assert (await probe.judge(longer)).score == pytest.approx(1 / (1 + np.exp(-expected)))


@pytest.mark.parametrize(
    ("question", "read"),
    [
        ("Was the harbour museum opened in 1950?", False),
        ("Was the harbour museum opened in 1911?", True),
        ("When was the harbour museum opened in 1950?", True),
    ],
)
async def test_a_question_that_the_evidence_says_no_to_is_not_read(
    reader: Reader, model: Marked, features: FeatureProbe, question: str, read: bool
) -> None:
    given = {"name": "both", "reader": "marked", "features": features.name, "depth": 4, "threshold": 0.6, "bias": 0.0}
    given |= {"reader_weight": 1.0, "feature_weight": 0.0, "windows_weight": 0.0, "feature_windows_weight": 0.0}
    asked = case("The harbour museum was opened in 1911.", question=question)
    seen = await ReaderProbe(given, reader, features).judge(asked)
    assert bool(model.passages) is read
    assert seen.detail == {"window": ["p#1"] if read else []}
    expected = -4.0 if read else features.logit(asked.question, asked.evidence, asked.rarity)
    assert seen.score == pytest.approx(1 / (1 + np.exp(-expected)))


def test_a_calibration_of_other_models_is_refused(features: FeatureProbe) -> None:
    model = {"name": "both", "reader": "other", "features": features.name}
    with pytest.raises(Invalid, match="other models"):
        ReaderProbe(model, Reader(Marked(), Settings()), features)


def test_a_reading_weighs_places_of_the_passage_against_nowhere() -> None:
    pair = Pair([101, 7, 102, 8, 9, 102], [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 5, 0])
    found = reading(pair, np.array([1.0, 99.0, 99.0, 2.0, 3.0, 99.0], np.float32))
    assert found.logit == pytest.approx(np.log(np.exp(2.0) + np.exp(3.0)) - 1.0)
    assert [at for at, _ in found.places] == [0, 5]
    assert [share for _, share in found.places] == pytest.approx([1 / (1 + np.e), np.e / (1 + np.e)])


def test_an_empty_passage_holds_nothing() -> None:
    pair = Pair([101, 7, 102, 102], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0])
    assert reading(pair, np.zeros(4, np.float32)).logit == -np.inf
