from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scopegate.llm.replies import Unread, by_number, in_order, line, objects, question, verdict

STYLES = [
    "{}. {}",
    "{}) {}",
    "({}) {}",
    "[{}] {}",
    "{}: {}",
    "{} - {}",
    "**{}.** {}",
    "- {}. {}",
    "Claim {}: {}",
    "# {}. {}",
]
CLAIMS = ["The pier of Port Alder is wooden.", "12:30 is when the ferry leaves.", "3.5 million people live here."]


@pytest.mark.parametrize("style", STYLES)
def test_reads_a_list_however_it_is_numbered(style: str) -> None:
    text = "\n".join(style.format(number, claim) for number, claim in enumerate(CLAIMS, 1))
    assert by_number(text, 3) == dict(enumerate(CLAIMS, 1))


def test_passes_over_prose_around_and_within() -> None:
    text = "Sure! Here are 2 claims:\n\n1. One is here.\n\nAnd another:\n\n2. Two is here.\n\nI hope that this helps."
    assert in_order(text) == ["One is here.", "Two is here."]


def test_reads_on_where_a_line_was_wrapped_and_not_beyond() -> None:
    text = "1. The pier of Port Alder\n   is made of wood.\nThat is claim one.\n2.\nThe ferry is new.\n- A comment."
    assert by_number(text, 2) == {1: "The pier of Port Alder is made of wood.", 2: "The ferry is new."}


def test_bullets_count_where_nothing_is_numbered() -> None:
    assert by_number("- One.\n* Two.", 2) == {1: "One.", 2: "Two."}
    assert by_number("- One.\n* Two.", 3) == {}
    assert in_order("• One.\n• Two.") == ["One.", "Two."]


def test_numbers_out_of_range_and_repeated_are_left_out() -> None:
    assert by_number("0. Zero.\n1. One.\n1. Uno.\n4. Four.", 3) == {1: "One."}


def test_markdown_that_numbers_everything_one_is_still_in_order() -> None:
    assert in_order("1. One.\n1. Two.\n1. two") == ["One.", "two"]


def test_what_was_escaped_comes_back_and_dress_comes_off() -> None:
    lines = ['1. **"Smith &amp; Sons" sells &lt;b&gt;.**', '2. <claim number="2">It is closed.</claim>']
    text = "\n".join([*lines, "3. “Why is it closed?”"])
    assert in_order(text) == ['"Smith & Sons" sells <b>.', "It is closed.", "Why is it closed?"]


@pytest.mark.parametrize("form", ["{}", "{} (5 words)", "**Question:** {}", "Question: {}", "*{}* [in scope]"])
def test_a_question_comes_without_label_and_remark(form: str) -> None:
    (said,) = in_order(f"1. {form.format('Who built the wooden pier?')}")
    assert question(said) == "Who built the wooden pier?"


@pytest.mark.parametrize("text", ["Tell me who built it.", "Who built it? Tell me.", "", "(?) Well."])
def test_what_asks_nothing_is_no_question(text: str) -> None:
    assert question(text) is None


def test_thoughts_are_no_reply() -> None:
    assert in_order("<think>1. Draft.</think>\n1. Final.") == ["Final."]
    assert in_order("<think>1. Draft.") == []


@pytest.mark.parametrize("garbage", ["", "\n\n", "1.", "1. ***", "no list at all", "12345. x", "1. " + "long " * 300])
def test_garbage_is_no_list(garbage: str) -> None:
    assert in_order(garbage) == []


@pytest.mark.parametrize("text", ["Confusing: yes", "It is.\n\n**Confusing:** Yes.\n", "> `confusing: YES`"])
def test_reads_the_last_line(text: str) -> None:
    assert verdict(text, "Confusing", ("yes", "no")) == "yes"


@pytest.mark.parametrize("text", ["", "yes", "Confusing: yes\nNot really.", "Confusing: maybe", "Confusing: yes, no"])
def test_what_does_not_end_as_it_should_is_no_verdict(text: str) -> None:
    with pytest.raises(Unread, match="Confusing: yes or Confusing: no"):
        verdict(text, "Confusing", ("yes", "no"))


@pytest.mark.parametrize(
    "text",
    [
        '[{"number": 1, "fact": "A."}, {"number": 2, "fact": "B."}]',
        'Here it is:\n```json\n[{"number": "1", "fact": "A."},\n{"number": 2, "fact": "B."}]\n```\nDone.',
        '{"number": 1, "fact": "A."}\n{"number": 2, "fact": "B."}',
        '[{"number": 1, "fact": "A."}, {"number": 2, "fact": "B."}, {"number": 3, "fa',
        '[{"number": 1, "fact": "A."}, {"number": 1, "fact": "C."}, {"number": 2, "fact": "B."}, {"number": 9}, 7]',
    ],
)
def test_reads_json_however_it_is_wrapped(text: str) -> None:
    assert {number: found["fact"] for number, found in objects(text, 2).items()} == {1: "A.", 2: "B."}


@pytest.mark.parametrize("garbage", ["", "[", "[]", "{}", '[{"number": true}]', "[[[[", '{"number": NaN}', '"]["'])
def test_garbage_is_no_json(garbage: str) -> None:
    assert objects(garbage, 3) == {}


def test_a_line_is_one_of_text() -> None:
    assert line("a\nb\x00 ") == line("\x07 a \x1b b \x00") == "a b"
    assert [line(value) for value in (None, 3, "", "...", "x" * 1_001)] == [None] * 5


_DRESS = [
    "1. ",
    "2) ",
    "- ",
    "**",
    "<claim>",
    "</think>",
    "<think>",
    "\n",
    "\n\n",
    "[",
    "]",
    "{",
    "}",
    '"number": 1',
    "Why?",
    ":",
]


@given(st.lists(st.one_of(st.sampled_from(_DRESS), st.text(max_size=12))).map("".join))
def test_no_text_is_too_strange(text: str) -> None:
    for item in in_order(text):
        assert item == " ".join(item.split())
        assert all(letter.isprintable() or letter in "\u200c\u200d" for letter in item)
    assert by_number(text, 3).keys() <= {1, 2, 3}
    assert objects(text, 3).keys() <= {1, 2, 3}
    try:
        assert verdict(text, "Confusing", ("yes", "no")) in {"yes", "no"}
    except Unread as unread:
        assert str(unread)  # noqa: PT017 - the one thing that it may raise


@pytest.mark.parametrize("bit", ["#", "*", "(", "[", "_ ", "{", "<claim ", "1. ", "claim ", "\n1.", "- ", "&amp;"])
def test_no_text_takes_long(bit: str) -> None:
    begin = time.perf_counter()
    text = bit * (50_000 // len(bit))
    by_number(text, 10)
    objects(text, 10)
    assert time.perf_counter() - begin < 5  # a pattern that goes back and forth would take minutes
