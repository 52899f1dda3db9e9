"""A script with good sense about a few questions: it judges, condenses and answers as each prompt asks for it."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from tests.scripted import Asked, Said, Script, by_prompt


@dataclass(frozen=True)
class Known:
    """What is to be said to a question.

    rests_on: texts of passages; where one is not shown, the question cannot be answered, and confusion, phrases and
    explanation say why.
    """

    answer: str = ""
    rests_on: tuple[str, ...] = ()
    confusion: str = "not_mentioned"
    phrases: tuple[str, ...] = ()
    explanation: str = "Nothing is known about it."


@dataclass(frozen=True)
class _Seen:
    """What a prompt shows: passages by number, and what is known about its question."""

    passages: Mapping[int, str]
    known: Known

    @property
    def evidence(self) -> list[int]:
        """The passages that the answer rests on; none where one is missing."""
        numbers = {text: number for number, text in self.passages.items()}
        rests_on = self.known.rests_on
        return [numbers[text] for text in rests_on] if set(rests_on) <= numbers.keys() else []


@dataclass(frozen=True)
class GoodSense:
    """table: by question, as it stands alone. standalone: what a question means that hangs on its conversation."""

    table: Mapping[str, Known]
    standalone: Mapping[str, str] = field(default_factory=dict)

    def script(self) -> Script:
        return by_prompt(
            {
                "You decide whether a question": self._answerable,
                "You judge whether a question": self._judge,
                "You rewrite the last question": lambda asked: self.standalone[_question(asked)],
                "Reply with one JSON object, {": self._json,
                "Reply in lines of exactly this form": self._lines,
            }
        )

    def _seen(self, asked: Asked) -> _Seen:
        passages = re.findall(r'<passage id="(\d+)">(.*?)</passage>', asked.user, re.DOTALL)
        known = self.table.get(_question(asked), Known())
        return _Seen({int(number): html.unescape(text) for number, text in passages}, known)

    def _answerable(self, asked: Asked) -> Said:
        said, other = ("yes", "no") if self._seen(asked).evidence else ("no", "yes")
        return Said(said, first={said: -0.1, other: -2.4})

    def _judge(self, asked: Asked) -> str:
        seen = self._seen(asked)
        if seen.evidence:
            return "The passages say so.\nAnswerable: yes"
        known = seen.known
        phrases = "".join(f"Phrase: {phrase}\n" for phrase in known.phrases)
        why = f"Confusion: {known.confusion}\n{phrases}Explanation: {known.explanation}\n"
        return f"The passages do not say.\n{why}Answerable: no"

    def _json(self, asked: Asked) -> str:
        seen = self._seen(asked)
        known = seen.known
        judged: dict[str, object] = {"can_answer": bool(seen.evidence)}
        if seen.evidence:
            judged["answer"] = known.answer
        else:
            judged["confusion"], judged["phrases"] = known.confusion, known.phrases
            judged["explanation"] = known.explanation
        reasoning: dict[str, object] = {
            "reasoning": "The passages say so." if seen.evidence else "The passages do not say."
        }
        reply = reasoning | judged if "step by step" in asked.system else judged | reasoning
        return orjson.dumps({"reply": {"evidence": seen.evidence} | reply}).decode()

    def _lines(self, asked: Asked) -> str:
        seen = self._seen(asked)
        known = seen.known
        reason = "REASON: The passages say so." if seen.evidence else "REASON: The passages do not say."
        if seen.evidence:
            cited = "".join(f" [{number}]" for number in seen.evidence)
            judged = ["CAN ANSWER: yes", f"ANSWER: {known.answer}{cited}"]
        else:
            judged = ["CAN ANSWER: no", f"CONFUSION: {known.confusion}", f"PHRASES: {'; '.join(known.phrases)}"]
            judged.append(f"EXPLANATION: {known.explanation}")
        evidence = f"EVIDENCE: {', '.join(map(str, seen.evidence)) or 'none'}"
        ordered = [reason, *judged] if "step by step" in asked.system else [*judged, reason]
        return "\n".join([evidence, *ordered])


def _question(asked: Asked) -> str:
    return html.unescape(re.findall(r"<question>(.*?)</question>", asked.user, re.DOTALL)[-1])
