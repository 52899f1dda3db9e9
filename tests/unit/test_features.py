from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scopegate.gate.features import NAMES, Kind, features, read_question
from scopegate.words import WordCounts
from tests.unit.evidence import said

rarity = WordCounts().rarity


def seen(question: str, *sentences: str) -> dict[str, float]:
    return dict(zip(NAMES, features(question, said(*sentences), rarity).tolist(), strict=True))


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("Who designed the bridge?", Kind.NAME),
        ("When did the bridge open?", Kind.DATE),
        ("In which year did the bridge open?", Kind.DATE),
        ("what is the largest city in Norway", Kind.PLACE),
        ("Where's the ferry?", Kind.PLACE),
        ("How many spans has the bridge?", Kind.NUMBER),
        ("How does the bridge open?", Kind.MANNER),
        ("Why was the bridge closed?", Kind.REASON),
        ("Didn’t the bridge close in May?", Kind.YES_NO),
        ("What did the company announce?", Kind.THING),
        ("Tell me about the bridge", Kind.THING),
        ("", Kind.THING),
        ("Could you tell me who designed the bridge?", Kind.NAME),
        ("Do you know when the bridge was opened?", Kind.DATE),
        ("Can you explain how many spans the bridge has?", Kind.NUMBER),
        ("Do you know whether the bridge is open?", Kind.YES_NO),
        ("Did the mayor know who designed the bridge?", Kind.YES_NO),
    ],
)
def test_kind_of_question(question: str, kind: Kind) -> None:
    assert read_question(question).kind is kind


def test_a_polite_frame_is_no_part_of_the_question() -> None:
    framed = read_question("Do you happen to know in which year Solvik was founded?")
    plain = read_question("Which year was Solvik founded?")
    assert [word.stem for word in framed.words] == [word.stem for word in plain.words] == ["solvik", "found"]
    assert (framed.kind, framed.noun) == (plain.kind, plain.noun)


def test_rare_words_weigh_more_in_coverage() -> None:
    common = seen("When did the Uzhhorod city museum open?", "The city museum did open in 1945.")
    rare = seen("When did the Uzhhorod city museum open?", "Uzhhorod is a city; the open air is fine.")
    assert common["coverage_plain"] == rare["coverage_plain"] == 0.75
    assert common["coverage_union"] < rare["coverage_union"] < 1.0


def test_words_spread_over_sentences_are_told_from_words_in_one() -> None:
    spread = seen(
        "Who repaired the Bergen organ?", "The organ is old.", "Bergen has a harbour.", "Ola repaired clocks."
    )
    joined = seen("Who repaired the Bergen organ?", "Ola repaired the Bergen organ.", "Bergen has a harbour.")
    assert [spread["coverage_union"], joined["coverage_union"], joined["coverage_best"]] == pytest.approx([1, 1, 1])
    assert spread["coverage_best"] < 0.7


@pytest.mark.parametrize(
    ("question", "with_answer", "without"),
    [
        ("Where is Solvik?", "Solvik is a farm in Telemark.", "Solvik was founded in 1910."),
        ("When was Solvik founded?", "Solvik was founded in 1910.", "Solvik was founded by two sisters."),
        ("Who founded Solvik?", "Ingrid Dahl founded Solvik.", "Solvik was founded in 1910."),
        ("How many cows has Solvik?", "Solvik has forty-two or 43 cows.", "Solvik has brown cows."),
        ("Why was Solvik sold?", "Solvik was sold because of debts.", "Solvik was sold in May."),
    ],
)
def test_an_answer_of_the_kind_asked_for_is_noticed(question: str, with_answer: str, without: str) -> None:
    assert seen(question, with_answer)["answer_in_best"] == 1.0
    assert seen(question, without)["answer_in_best"] == 0.0


def test_the_questions_own_words_are_no_answer() -> None:
    assert seen("Who is Ingrid Dahl?", "Ingrid Dahl is here.")["answer_in_best"] == 0.0


def test_missing_names_and_numbers_are_counted() -> None:
    found = seen("Did Ola Nordmann sell Solvik in 1925 to Kari?", "Ola Nordmann sold some land.")
    assert (found["missing_names"], found["missing_numbers"]) == (2.0, 1.0)


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("Was Solvik founded in 1925?", "Solvik was founded in 1910."),
        ("Did Kari Moen found Solvik?", "Ingrid Dahl founded Solvik."),
    ],
)
def test_a_contradicted_yes_no_question_misses_nothing(question: str, sentence: str) -> None:
    found = seen(question, sentence)
    assert [found["coverage_best"], found["coverage_union"]] == pytest.approx([1.0, 1.0])
    assert found["missing_numbers"] == found["missing_names"] == 0.0


def test_a_year_in_a_question_for_something_else_is_missed() -> None:
    assert seen("Who ran Solvik in 1925?", "Ingrid Dahl ran Solvik in 1910.")["missing_numbers"] == 1.0


def test_a_negation_on_one_side_is_noticed() -> None:
    assert seen("Which farm was not sold?", "Solvik farm was sold.")["negation_differs"] == 1.0
    assert seen("Which farm wasn't sold?", "Solvik farm was never sold.")["negation_differs"] == 0.0


def test_words_that_stand_together_are_told_from_words_apart() -> None:
    question = "Who repaired the Bergen organ?"
    assert seen(question, "Ola repaired the Bergen organ.")["order_kept"] == 1.0
    assert seen(question, "Ola repaired old clocks in Bergen before he saw an organ.")["order_kept"] == 0.0


def test_a_word_is_looked_for_in_its_first_places_only() -> None:
    assert seen("Bergen organ?", "organ " * 20 + "Bergen")["order_kept"] == 1.0
    assert seen("Bergen organ?", "organ " * 100 + "Bergen")["order_kept"] == 0.0


def test_a_letter_that_is_only_a_mark_breaks_nothing() -> None:
    found = features("\uff9e who?", said("\uff9e is known.", "\uff9f"), rarity)
    assert np.isfinite(found).all()


@given(st.text(max_size=60), st.lists(st.text(max_size=80), min_size=1, max_size=4))
def test_finite_for_any_text(question: str, sentences: list[str]) -> None:
    found = features(question, said(*sentences), rarity)
    assert found.shape == (len(NAMES),)
    assert np.isfinite(found).all()
