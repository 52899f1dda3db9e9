from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scopegate.knowledge.sentences import MAX_CHARACTERS, split


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        pytest.param(
            "Dr. Aalto met J. P. Lindqvist at 5 p.m. on Jan. 3. They signed, e.g. for the U.S. rights.",
            ["Dr. Aalto met J. P. Lindqvist at 5 p.m. on Jan. 3.", "They signed, e.g. for the U.S. rights."],
            id="abbreviations",
        ),
        pytest.param(
            'She asked: "Is it open? I hope so." Nobody answered.',
            ['She asked: "Is it open? I hope so."', "Nobody answered."],
            id="quotes",
        ),
        pytest.param(
            "Opening hours:\n- Monday: closed\n- Tuesday: nine to five\n* Other days: ask",
            ["Opening hours:", "- Monday: closed", "- Tuesday: nine to five", "* Other days: ask"],
            id="bullets",
        ),
        pytest.param(
            "1. Open the valve.\n2. Wait a minute. Then close it.\n3) Write it down.",
            ["1. Open the valve.", "2. Wait a minute.", "Then close it.", "3) Write it down."],
            id="numbers",
        ),
        pytest.param(
            "The harbour museum is open on every day of\nthe week but Monday, and the ferry that leaves\n"
            "from the pier is free.\nDogs are welcome.",
            [
                "The harbour museum is open on every day of\nthe week but Monday, and the ferry that leaves\n"
                "from the pier is free.",
                "Dogs are welcome.",
            ],
            id="wrapped lines",
        ),
        pytest.param(
            "Visiting the lighthouse\nThe lighthouse can be visited from May to September, by boat only.",
            [
                "Visiting the lighthouse",
                "The lighthouse can be visited from May to September, by boat only.",
            ],
            id="heading",
        ),
        pytest.param(
            "La señora Gómez llegó. ¿Qué pasó? Nadie lo sabe.",
            ["La señora Gómez llegó.", "¿Qué pasó?", "Nadie lo sabe."],
            id="Spanish",
        ),
        pytest.param("東京は大きい。人口は多い。", ["東京は大きい。", "人口は多い。"], id="Japanese"),
        pytest.param("Первое предложение. Второе!", ["Первое предложение.", "Второе!"], id="Russian"),
        pytest.param("One.\r\n\r\n-----\r\n***\r\nTwo.", ["One.", "Two."], id="rules and CRLF"),
        pytest.param(" \n\t ...  \n", [], id="nothing to say"),
        pytest.param("", [], id="empty"),
    ],
)
def test_splits(text: str, sentences: list[str]) -> None:
    assert split(text) == sentences


def test_long_runs_are_cut_between_clauses() -> None:
    text = "; ".join(f"clause {number} of a contract that never ends, as contracts do" for number in range(100))
    pieces = split(text)
    assert all(len(piece) <= MAX_CHARACTERS for piece in pieces)
    assert all(piece.endswith(";") for piece in pieces[:-1])
    assert " ".join(pieces) == text


def test_an_unwrapped_verse_is_one_sentence_however_many_lines_it_has() -> None:
    text = "Sung at sea\n" + "la la\n" * 150
    assert split(text) == [text.strip()]


def test_ideographs_weigh_as_tokens() -> None:
    assert max(map(len, split("山" * 900))) == MAX_CHARACTERS // 4


def test_an_unbroken_run_is_cut_anyway() -> None:
    assert [len(piece) for piece in split("x" * 2_500)] == [1_000, 1_000, 500]


@given(st.text(alphabet=st.one_of(st.sampled_from("ab Z.\n-1?!\r;,)“”’"), st.characters(codec="utf-8")), max_size=400))
def test_pieces_stand_verbatim_and_in_order_in_the_text(text: str) -> None:
    at = 0
    for piece in split(text):
        assert piece
        assert piece == piece.strip()
        found = text.find(piece, at)
        assert found >= 0
        at = found + len(piece)


def test_nothing_that_says_something_is_lost() -> None:
    text = "Head\nA first line. A second one\n\n- item 7\nTail (b) etc. 5. Six."
    assert "".join(filter(str.isalnum, "".join(split(text)))) == "".join(filter(str.isalnum, text))
