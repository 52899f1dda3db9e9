from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scopegate.words import WordCounts, stem, words


def test_offsets_count_code_points() -> None:
    text = "Où est 🦉 l’École d'Örebro?"
    for word in words(text):
        assert text[word.start : word.end] == word.text
    assert [word.text for word in words(text)] == ["Où", "est", "l’École", "d'Örebro"]


@given(st.text(max_size=200))
def test_any_text_has_words_in_order_with_true_offsets(text: str) -> None:
    end = 0
    for word in words(text):
        assert end <= word.start < word.end
        assert text[word.start : word.end] == word.text
        end = word.end


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("founded", "founder"),
        ("Zürich", "zurich"),
        ("Nokia's", "Nokia"),
        ("Nokia’s", "Nokia"),
        ("harbours", "harbour"),
        ("wrote", "written"),
        ("U.S.", "US"),
        ("1,250", "1250"),
        ("seven", "7"),
    ],
)
def test_forms_of_one_word_share_a_stem(one: str, other: str) -> None:
    assert stem(one) == stem(other)


@pytest.mark.parametrize(
    ("one", "other"), [("2010", "2018"), ("north", "south"), ("3.5", "35"), ("3,5", "35"), ("Oslo", "Bergen")]
)
def test_different_words_do_not(one: str, other: str) -> None:
    assert stem(one) != stem(other)


@pytest.mark.parametrize("mark", ["\uff9e", "\uff9f"])
def test_a_letter_that_decomposes_to_a_mark_alone_still_has_a_stem(mark: str) -> None:
    assert [word.stem for word in words(f"{mark} Oslo")] == [mark, stem("Oslo")]


def test_long_texts_are_read_but_not_remembered() -> None:
    assert words("Oslo " * 100) is words("Oslo " * 100)
    assert words("Oslo " * 1_000) is not words("Oslo " * 1_000)
    assert words("Oslo " * 1_000) == words("Oslo " * 1_000)


def test_function_words_say_nothing_and_acronyms_do() -> None:
    told = {word.text: word.informative for word in words("Where's the WHO office that US staff told us about?")}
    assert told == {
        "Where's": False,
        "the": False,
        "WHO": True,
        "office": True,
        "that": False,
        "US": True,
        "staff": True,
        "told": True,
        "us": False,
        "about": False,
    }


def test_ideographs_are_words_of_their_own() -> None:
    assert [word.text for word in words("東京 is Tōkyō")] == ["東", "京", "is", "Tōkyō"]


def test_three_facts_still_know_what_is_common() -> None:
    counts = WordCounts()
    for fact in ("Bergen is a city.", "Trondheim is a town.", "Flåm is a village."):
        counts.add(fact)
    assert counts.rarity(stem("the")) < counts.rarity(stem("city")) < counts.rarity(stem("Uzhhorod")) == 1.0


def test_a_large_body_decides_for_itself() -> None:
    counts = WordCounts()
    before = counts.rarity(stem("compressor"))
    for number in range(5_000):
        counts.add(f"Compressor {number} was serviced.")
    assert counts.rarity(stem("compressor")) < 0.1 < before
    assert counts.rarity(stem("Uzhhorod")) == 1.0


def test_removing_takes_back_what_adding_counted() -> None:
    counts = WordCounts()
    before = counts.rarity("ferri")
    counts.add("The ferry, the old ferry, leaves at noon.")
    assert counts.rarity("ferri") < before
    counts.remove("The ferry, the old ferry, leaves at noon.")
    assert counts.rarity("ferri") == before
