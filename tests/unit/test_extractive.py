from __future__ import annotations

import pytest

from scopegate.answering.extractive import extract
from scopegate.domain import Evidence
from scopegate.inference.encoder import Encoder
from scopegate.words import WordCounts
from tests.unit.evidence import evidence, said

rarity = WordCounts().rarity

HARBOUR = [
    "The ferry to Askøy leaves from pier four.",
    "The first ferry leaves at six in the morning.",
    "Dogs travel on the ferry for free.",
    "The harbour museum was opened by Ingrid Dahl.",
    "The harbour museum was opened in 1987.",
    "A ticket for the museum costs 90 kroner.",
]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Who opened the harbour museum?", HARBOUR[3]),
        ("When was the harbour museum opened?", HARBOUR[4]),
        ("Where does the ferry to Askøy leave?", HARBOUR[0]),
        ("When does the first ferry leave?", HARBOUR[1]),
        ("Can I take my dog on the ferry?", HARBOUR[2]),
        ("How much does a museum ticket cost?", HARBOUR[5]),
        ("Was the harbour museum opened in 2005?", HARBOUR[4]),
    ],
)
def test_the_sentence_that_answers(encoder: Encoder, question: str, answer: str) -> None:
    chosen, reason = extract(question, evidence(encoder, question, HARBOUR), rarity, {})
    assert [held.text for held in chosen] == [answer]
    assert reason.endswith(".")


def test_the_kind_of_answer_decides_between_sentences_that_are_equally_close() -> None:
    chosen, reason = extract("Who opened the harbour museum?", said(HARBOUR[4], HARBOUR[3]), rarity, {})
    assert [held.text for held in chosen] == [HARBOUR[3]]
    assert (
        reason
        == "This sentence shares “opened”, “harbour”, “museum” with the question and gives a name, which it asks for."
    )


def test_a_second_sentence_where_it_covers_what_the_first_leaves() -> None:
    sentences = [
        "Ingrid Dahl painted the ceiling of Solvik church.",
        "Ingrid Dahl was born in Flekkefjord.",
        "Basalt is a rock.",
    ]
    chosen, reason = extract("Where was the painter of the Solvik ceiling born?", said(*sentences), rarity, {})
    assert {held.text for held in chosen} == set(sentences[:2])
    assert reason.startswith("Together")


def test_no_second_sentence_where_it_adds_nothing() -> None:
    chosen, _ = extract("When was the harbour museum opened?", said(HARBOUR[4], HARBOUR[3]), rarity, {})
    assert [held.text for held in chosen] == [HARBOUR[4]]


def test_no_second_sentence_about_something_else() -> None:
    sentences = ["Dogs are allowed on deck on a lead.", "The ferry leaves at noon."]
    chosen, _ = extract("Are dogs allowed on the ferry?", said(*sentences), rarity, {})
    assert [held.text for held in chosen] == sentences[:1]


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (
            "Was the museum opened in 1950?",
            "This sentence shares “museum”, “opened” with the question and has something else in the place of “1950”.",
        ),
        (
            "Was the museum opened in 1911?",
            "This sentence shares “museum”, “opened”, “1911” with the question.",
        ),
    ],
)
def test_the_reason_names_only_words_that_are_there(question: str, reason: str) -> None:
    assert extract(question, said("The museum was opened in 1911."), rarity, {})[1] == reason


def test_confidence_counts_between_sentences_that_say_the_same() -> None:
    doubtful = Evidence("1", "The museum was opened in 1978.", 0.4, 0.3, 0.75, None)
    certain = Evidence("2", "The museum was opened in 1987.", 1.0, 0.3, 0.3, None)
    assert extract("When was the museum opened?", [doubtful, certain], rarity, {})[0] == (certain,)


def test_without_a_shared_word_it_is_the_closest() -> None:
    near = Evidence("1", "Solvik breeds cattle.", 1.0, 0.5, 0.5, None)
    far = Evidence("2", "Basalt floats.", 1.0, 1.5, 1.5, None)
    chosen, reason = extract("Got any cows?", [near, far], rarity, {})
    assert chosen == (near,)
    assert "closest in meaning" in reason


def test_no_evidence_is_an_error() -> None:
    with pytest.raises(ValueError, match="evidence"):
        extract("Who?", [], rarity, {})


def test_where_a_probe_found_the_answer_counts_most() -> None:
    sentences = said("Astrid Holm opened the harbour museum.", "She was born in Bergen.")
    question = "Where was Astrid Holm, who opened the harbour museum, born?"
    assert extract(question, sentences, rarity, {})[0][0] == sentences[0]
    found = {sentences[0].id: 0.1, sentences[1].id: 0.9}
    assert extract(question, sentences, rarity, found)[0][0] == sentences[1]
