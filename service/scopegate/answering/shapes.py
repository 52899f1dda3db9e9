"""The two shapes of a reply in four parts: evidence, reasoning, can-answer, answer (Learn to Refuse, section 3.1).

Lines are read as they come and work with any server; JSON is decoded under a schema in which citable passages are an
enum. The method sets the order: reasoning before the judgement (ELOQ, B.8), or after the answer (B.6, B.7).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import from_json

from scopegate.domain import ConfusionType
from scopegate.prompts import MARKUP, Prompt, load_prompt

_REASONING = "reasoning"
# Tokens that stand around an answer; with reasoning before it, the more.
_AROUND, _AROUND_REASONED = 96, 608


class Unreadable(Exception):
    """A reply that does not have its shape; says in one sentence, fit for the LLM, what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Written:
    """A reply, as far as it is written.

    evidence: the passages it names, of those that there are; settled once can_answer is. can_answer: None until told.
    answer: the text so far. The rest is settled when the reply is complete; confusion, phrases of the question and
    explanation tell why it cannot answer.
    """

    evidence: tuple[int, ...] = ()
    can_answer: bool | None = None
    answer: str = ""
    reasoning: str = ""
    confusion: ConfusionType | None = None
    phrases: tuple[str, ...] = ()
    explanation: str = ""


class Shape(Protocol):
    """How a reply is asked for, and read."""

    @property
    def prompt(self) -> Prompt:
        """Takes passages and question."""

    @property
    def around(self) -> int:
        """Tokens that a reply may take beyond those of its answer."""

    def schema(self, passages: int) -> Mapping[str, Any] | None:
        """What decoding is held to, for so many passages."""

    def read(self, text: str, passages: int, *, complete: bool) -> Written:
        """The reply so far. The answer in a longer text always begins with the answer in a shorter one.

        Raises Unreadable as soon as it is clear that the text will not have the shape.
        """


class Lines:
    """Lines that begin with a name and a colon, plain or marked up; the answer may go on over several."""

    _EVIDENCE, _CAN_ANSWER, _ANSWER, _REASON = "EVIDENCE", "CAN ANSWER", "ANSWER", "REASON"
    _CONFUSION, _PHRASES, _EXPLANATION = "CONFUSION", "PHRASES", "EXPLANATION"

    def __init__(self, method: str) -> None:
        self.prompt = load_prompt("answer_text", method=method)
        judged = [self._CAN_ANSWER, self._ANSWER, self._CONFUSION, self._PHRASES, self._EXPLANATION]
        reasoned = [self._REASON, *judged] if method == _REASONING else [*judged, self._REASON]
        self.around = _AROUND_REASONED if method == _REASONING else _AROUND
        self._order = [self._EVIDENCE, *reasoned]
        self._name = re.compile(rf"^[{MARKUP}]*({'|'.join(self._order)})[{MARKUP}]*:[*_`]*", re.MULTILINE)

    def schema(self, passages: int) -> None:
        """See Shape."""

    def read(self, text: str, passages: int, *, complete: bool) -> Written:
        """See Shape."""
        parts = self._parts(text, complete)
        # The last part may go on.
        settled = parts if complete else dict(list(parts.items())[:-1])
        can_answer = settled.get(self._CAN_ANSWER)
        if can_answer is None and not complete:
            return Written()
        said = {"yes": True, "no": False}.get((can_answer or "").strip(MARKUP + ".").lower())
        if said is None:
            raise Unreadable("it has no line that says CAN ANSWER: yes, or CAN ANSWER: no, after a line EVIDENCE")
        confusion = settled.get(self._CONFUSION, "").strip(MARKUP + ".").lower()
        return _checked(
            Written(
                tuple(_known(map(int, re.findall(r"[0-9]{1,9}", settled.get(self._EVIDENCE, ""))), passages)),
                said,
                parts.get(self._ANSWER, "") if said else "",
                settled.get(self._REASON, ""),
                ConfusionType(confusion) if confusion in set(ConfusionType) else None,
                tuple(phrase.strip(' "') for phrase in settled.get(self._PHRASES, "").split(";")),
                settled.get(self._EXPLANATION, ""),
            ),
            complete,
        )

    def _parts(self, text: str, complete: bool) -> dict[str, str]:
        """The parts by name, in order; a name counts only where it comes after the last.

        Raises Unreadable where it judges again.
        """
        last_line = text[text.rfind("\n") + 1 :]
        if not complete and any(name.startswith(last_line.strip(MARKUP)) for name in self._order):
            text = text.removesuffix(last_line)
        found: list[re.Match[str]] = []
        for match in self._name.finditer(text):
            if not found or self._order.index(match[1]) > self._order.index(found[-1][1]):
                found.append(match)
            elif match[1] in (self._EVIDENCE, self._CAN_ANSWER):
                raise Unreadable(f"it has a line {match[1]} where none may stand any more")
        ends = [*(match.start() for match in found[1:]), len(text)]
        return {match[1]: text[match.end() : end].strip() for match, end in zip(found, ends, strict=False)}


class Json:
    """One JSON object; the passages that can be cited are an enum of those that there are."""

    def __init__(self, method: str) -> None:
        self.prompt = load_prompt("answer_json", method=method)
        self._reasons_first = method == _REASONING
        self.around = _AROUND_REASONED if self._reasons_first else _AROUND

    def schema(self, passages: int) -> Mapping[str, Any]:
        """See Shape. An answer cites at least one passage; a reply without an answer says why."""
        numbers = {"type": "array", "items": {"enum": list(range(1, passages + 1))}, "maxItems": passages}
        text = {"type": "string"}
        answering = {"can_answer": {"const": True}, "answer": {"type": "string", "minLength": 1}}
        declining = {
            "can_answer": {"const": False},
            "confusion": {"enum": list(map(str, ConfusionType))},
            "phrases": {"type": "array", "items": text, "maxItems": 3},
            "explanation": text,
        }
        ways = []
        for way, least in ((answering, 1), (declining, 0)):
            reasoned = {"reasoning": text} | way if self._reasons_first else way | {"reasoning": text}
            ways.append(_object({"evidence": numbers | {"minItems": least}} | reasoned))
        # The root must be a plain object: some servers take no alternatives there.
        return _object({"reply": {"anyOf": ways}})

    def read(self, text: str, passages: int, *, complete: bool) -> Written:
        """See Shape."""
        if not complete and not text.strip():
            return Written()
        try:
            document = from_json(text, allow_partial=False if complete else "trailing-strings")
        except ValueError as error:
            raise Unreadable(f"it is not one JSON object: {error}") from error
        reply = document.get("reply", {}) if isinstance(document, dict) else None
        if not isinstance(reply, dict):
            raise Unreadable("it is not a JSON object with a field reply that is an object")
        can_answer = reply.get("can_answer")
        if can_answer is None and not complete:
            return Written()
        if not isinstance(can_answer, bool):
            raise Unreadable("its field can_answer is not true or false")
        numbers, phrases, confusion = reply.get("evidence"), reply.get("phrases"), reply.get("confusion")
        labels = [each for each in numbers if type(each) is int] if isinstance(numbers, list) else []
        return _checked(
            Written(
                tuple(_known(labels, passages)),
                can_answer,
                _text(reply.get("answer")) if can_answer else "",
                _text(reply.get("reasoning")),
                ConfusionType(confusion) if confusion in tuple(ConfusionType) else None,
                tuple(map(_text, phrases)) if isinstance(phrases, list) else (),
                _text(reply.get("explanation")),
            ),
            complete,
        )


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object with these properties and no others, in this order."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _known(labels: Any, passages: int) -> dict[int, None]:
    return dict.fromkeys(label for label in labels if 1 <= label <= passages)


def _checked(written: Written, complete: bool) -> Written:
    if written.can_answer and not written.evidence:
        raise Unreadable("it says that the passages give the answer, and names none of them as evidence")
    if written.can_answer and complete and not written.answer.strip():
        raise Unreadable("it says that the passages give the answer, and does not give it")
    return written
