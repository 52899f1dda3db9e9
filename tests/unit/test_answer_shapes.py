from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scopegate.answering.reply import Reply
from scopegate.answering.shapes import Json, Lines, Shape, Unreadable, Written
from scopegate.domain import ConfusionType
from scopegate.llm.client import Piece

METHODS = ["basic", "two_shot", "reasoning"]
ANSWER = "It leaves at ten [2],\nfrom pier 4 [1]. “R&amp;D” é 🦉"
PHRASES = ("the night train", "from Harwick")

BASIC = f"EVIDENCE: 2, 1\nCAN ANSWER: yes\nANSWER: {ANSWER}\nREASON: The timetable says so."
REASONED = f"EVIDENCE: 2, 1\nREASON: The timetable\nsays so.\nCAN ANSWER: yes\nANSWER: {ANSWER}"
DECLINED = (
    "EVIDENCE: none\nCAN ANSWER: no\nCONFUSION: not_mentioned\n"
    'PHRASES: "the night train"; from Harwick\nEXPLANATION: No train is known.\nREASON: Only ferries.'
)

MARKED_UP = f"**EVIDENCE:** 2, 1\n- **CAN ANSWER:** Yes.\n# __ANSWER__: {ANSWER}\n* `REASON`: The timetable says so."


def replied(**fields: Any) -> str:
    return json.dumps({"reply": fields}, ensure_ascii=True)


JSON_BASIC = replied(evidence=[2, 1], can_answer=True, answer=ANSWER, reasoning="The timetable says so.")
JSON_REASONED = replied(evidence=[2, 1], reasoning="The timetable\nsays so.", can_answer=True, answer=ANSWER)
JSON_DECLINED = replied(
    evidence=[],
    can_answer=False,
    confusion="not_mentioned",
    phrases=PHRASES,
    explanation="No train is known.",
    reasoning="Only ferries.",
)
READABLE: list[tuple[Shape, str]] = [
    (Lines("basic"), BASIC),
    (Lines("reasoning"), REASONED),
    (Lines("basic"), DECLINED),
    (Json("basic"), JSON_BASIC),
    (Json("reasoning"), JSON_REASONED),
    (Json("basic"), JSON_DECLINED),
    (Lines("basic"), MARKED_UP),
    (Lines("basic"), re.sub("^", "  ", DECLINED, flags=re.MULTILINE)),
]
THOUGHT: list[tuple[Shape, str]] = [
    (Lines("basic"), f"<think>\nCAN ANSWER: no, or\n{DECLINED}\n</think>\n\n{BASIC}"),
    (Lines("basic"), f"<think>\n{BASIC}\n</think>{DECLINED}"),
    (Json("basic"), f"<think>{{}}</think>{JSON_BASIC}"),
]
readable = pytest.mark.parametrize(("shape", "text"), READABLE)


@readable
def test_reads_the_four_parts(shape: Shape, text: str) -> None:
    written = shape.read(text, 3, complete=True)
    if written.can_answer:
        assert (written.evidence, written.answer) == ((2, 1), ANSWER)
        assert " ".join(written.reasoning.split()) == "The timetable says so."
    else:
        expected = Written((), False, "", "Only ferries.", ConfusionType.NOT_MENTIONED, PHRASES, "No train is known.")
        assert written == expected


def read(shape: Shape, pieces: list[str]) -> tuple[str, Reply]:
    """The text shown, as it grew, and the reply."""
    reply = Reply(shape, 3)
    shown = ""
    for piece in pieces:
        reply.take(Piece(piece, {}, False, None))
        reply.read()
        assert reply.shown.startswith(shown)
        shown = reply.shown
    reply.finish()
    assert reply.shown.startswith(shown)
    return reply.shown, reply


@pytest.mark.parametrize(("shape", "text"), READABLE + THOUGHT)
def test_every_cut_in_two_reads_the_same(shape: Shape, text: str) -> None:
    whole, reply = read(shape, [text])
    for cut in range(len(text) + 1):
        shown, cut_reply = read(shape, [text[:cut], text[cut:]])
        assert (shown, cut_reply.written, cut_reply.citations) == (whole, reply.written, reply.citations)


@given(st.sampled_from(READABLE + THOUGHT), st.lists(st.integers(1, 12), min_size=1, max_size=40))
def test_any_stream_of_pieces_reads_the_same(readable: tuple[Shape, str], sizes: list[int]) -> None:
    shape, text = readable
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    whole, reply = read(shape, [text])
    shown, cut_reply = read(shape, pieces)
    assert (shown, cut_reply.written, cut_reply.citations) == (whole, reply.written, reply.citations)


def test_answer_text_is_there_before_the_reply_is_done() -> None:
    for shape, text in ((Lines("basic"), BASIC), (Json("basic"), JSON_BASIC)):
        reply = Reply(shape, 3)
        reply.take(Piece(text[: text.index("ten") + 5], {}, False, None))
        reply.read()
        assert reply.shown == "It leaves at ten"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "no line that says CAN ANSWER"),
        ("I am sorry, the passages do not say.", "no line that says CAN ANSWER"),
        ("EVIDENCE: 1\nCAN ANSWER: perhaps\nANSWER: Ten.", "no line that says CAN ANSWER"),
        ("EVIDENCE: 9\nCAN ANSWER: yes\nANSWER: Ten [9].", "names none of them as evidence"),
        ("CAN ANSWER: yes\nANSWER: Ten [1].", "names none of them as evidence"),
        ("EVIDENCE: 1\nCAN ANSWER: yes\nANSWER:  \nREASON: So it is.", "does not give it"),
        ("EVIDENCE: 1\nCAN ANSWER: yes", "does not give it"),
        ("EVIDENCE: 1\nCAN ANSWER: yes\nANSWER: Ten [1].\nCAN ANSWER: no", "a line CAN ANSWER"),
        ("EVIDENCE: 1\nCAN ANSWER: yes\nANSWER: Ten.\nREASON: So.\n**EVIDENCE:** none", "a line EVIDENCE"),
        ("EVIDENCE: 99999999999999999999999999\nCAN ANSWER: yes\nANSWER: Ten", "names none"),
    ],
)
def test_lines_that_cannot_be_read(text: str, wrong: str) -> None:
    with pytest.raises(Unreadable, match=wrong):
        Lines("basic").read(text, 3, complete=True)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "not one JSON object"),
        ("No idea.", "not one JSON object"),
        (JSON_BASIC + "!", "not one JSON object"),
        (JSON_BASIC[:-2], "not one JSON object"),
        ('{"reply": {"can_answer": false, "explanation": "\\ud800"}}', "not one JSON object"),
        ("[1]", "field reply"),
        ('{"reply": 0}', "field reply"),
        ("{}", "can_answer"),
        (replied(evidence=[1], can_answer="yes", answer="Ten."), "can_answer"),
        (replied(evidence=[9, 0, -1], can_answer=True, answer="Ten."), "names none"),
        (replied(evidence=[True, "1", 1.0], can_answer=True, answer="Ten."), "names none"),
        (replied(evidence="1", can_answer=True, answer="Ten."), "names none"),
        (replied(evidence=[1], can_answer=True, answer=None), "does not give it"),
        (replied(evidence=[1], can_answer=True, answer=" "), "does not give it"),
        (replied(evidence=[1], can_answer=True, answer=["Ten."]), "does not give it"),
    ],
)
def test_json_that_cannot_be_read(text: str, wrong: str) -> None:
    with pytest.raises(Unreadable, match=wrong):
        Json("basic").read(text, 3, complete=True)


def test_what_cannot_become_readable_is_told_at_once() -> None:
    for shape, text in (
        (Json("basic"), "Well, "),
        (Json("basic"), '{"reply": {"evidence": [9], "can_answer": true, "an'),
        (Lines("basic"), "EVIDENCE: 9\nCAN ANSWER: yes\nANSWER:"),
    ):
        with pytest.raises(Unreadable):
            shape.read(text, 3, complete=False)


def test_an_answer_that_cites_only_what_is_not_there_is_no_answer() -> None:
    with pytest.raises(Unreadable, match="says nothing"):
        read(Lines("basic"), ["EVIDENCE: 1\nCAN ANSWER: yes\nANSWER: [9]"])


def test_words_that_begin_like_a_name_are_the_answers() -> None:
    text = "EVIDENCE: 1\nCAN ANSWER: yes\nANSWER: It says:\nANSWER: is rare.\nREASONABLE.\nREASON: So."
    assert Lines("basic").read(text, 1, complete=True).answer == "It says:\nANSWER: is rare.\nREASONABLE."


@pytest.mark.parametrize("confusion", [[], {}, ["ambiguous"], 7, "quite"])
def test_a_confusion_that_is_none_is_left_out(confusion: object) -> None:
    text = replied(evidence=[], can_answer=False, confusion=confusion, phrases=[], explanation="", reasoning="")
    assert Json("basic").read(text, 3, complete=True).confusion is None


def test_thoughts_are_no_part_of_a_reply() -> None:
    for (shape, text), said in zip(THOUGHT, (BASIC, DECLINED, JSON_BASIC), strict=True):
        _, reply = read(shape, [text])
        assert reply.written == shape.read(said, 3, complete=True)


@pytest.mark.parametrize("thoughts", ["<think>", " <think>\n"])
def test_a_reply_that_only_thinks_says_nothing(thoughts: str) -> None:
    with pytest.raises(Unreadable):
        read(Lines("basic"), [thoughts, BASIC])


def test_thoughts_whose_beginning_the_prompt_holds_do_not_count_either() -> None:
    shown, reply = read(Lines("basic"), [f"{BASIC}\n</think>\n{DECLINED}"])
    assert (shown, reply.declines) == ("", True)


@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [
        (Json("basic"), '{"reply": {"evidence": [1], "can_answer": true, "answer": "Ten.', '", "can_answer": false}}'),
        (Json("basic"), '{"reply": {"evidence": [1], "can_answer": true, "answer": "Ten.', '", "answer": "Eleven"'),
        (Json("basic"), '{"reply": {"evidence": [1], "can_answer": false, ', '"can_answer": true, "answer": "Ten."'),
        (Lines("basic"), BASIC, f"</think>{DECLINED}"),
    ],
)
def test_what_was_said_is_not_taken_back(shape: Shape, before: str, after: str) -> None:
    with pytest.raises(Unreadable, match="takes back"):
        read(shape, [before, after])


def test_a_reply_without_end_is_given_up() -> None:
    reply = Reply(Lines("basic"), 3)
    for _ in range(100):
        reply.take(Piece("word " * 100, {}, False, None))
    with pytest.raises(Unreadable, match="goes on"):
        reply.take(Piece("word " * 10_000, {}, False, None))


@pytest.mark.parametrize("method", METHODS)
def test_the_schema_asks_for_the_order_of_the_method_and_binds_citations(method: str) -> None:
    schema = dict(Json(method).schema(3))
    valid = JSON_REASONED if method == "reasoning" else JSON_BASIC
    assert jsonschema_rs.is_valid(schema, json.loads(valid))
    assert jsonschema_rs.is_valid(schema, json.loads(JSON_DECLINED))
    for bad in (
        {"evidence": [], "can_answer": True, "answer": "Ten.", "reasoning": ""},
        {"evidence": [4], "can_answer": True, "answer": "Ten.", "reasoning": ""},
        {"evidence": [1], "can_answer": True, "answer": "", "reasoning": ""},
        {"evidence": [1], "can_answer": False, "answer": "Ten.", "reasoning": ""},
    ):
        assert not jsonschema_rs.is_valid(schema, {"reply": bad})
    for way in schema["properties"]["reply"]["anyOf"]:
        order = list(way["properties"])
        assert way["required"] == order
        assert order[0] == "evidence"
        assert (order.index("reasoning") < order.index("can_answer")) is (method == "reasoning")
