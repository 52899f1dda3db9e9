"""The three agents: one asks, one answers and says how sure it is, one makes facts of that (Learn to Refuse, G)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scopegate.llm.asker import Asker, seed_of
from scopegate.llm.asks import Ask
from scopegate.llm.replies import Unread, in_order, line, normal, objects, question
from scopegate.prompts import load_prompt

QUESTIONS = load_prompt("enrich_questions")
ANSWERS = load_prompt("enrich_answer")
FACTS = load_prompt("enrich_fact")

# Questions of different requests are to differ.
_TEMPERATURE = 1.0
_MARGIN_TOKENS, _QUESTION_TOKENS, _OBJECT_TOKENS = 256, 60, 120


@dataclass(frozen=True, slots=True)
class Pair:
    """A question and its answer. confidence: C, in (0, 1]."""

    question: str
    answer: str
    confidence: float


async def new_questions(asker: Asker, seeds: Sequence[str], count: int, seed: int) -> list[str]:
    """At most count questions, none of them a seed. Raises LlmFailed where there is none."""
    known = {normal(each) for each in seeds}

    def read(text: str) -> list[str]:
        asked = [asks for said in in_order(text) if (asks := question(said)) is not None]
        questions = [each for each in asked if normal(each) not in known]
        if len(questions) < count:
            why = f"it has {len(questions)} new questions on numbered lines where {count} are needed"
            raise Unread(why, questions or None)
        return questions[:count]

    tokens = _MARGIN_TOKENS + _QUESTION_TOKENS * count
    turns = QUESTIONS.render(seeds=seeds, count=count)
    return await asker.read(Ask(turns, tokens, _TEMPERATURE, seed=seed_of(seed, QUESTIONS.id)), read)


async def answers(asker: Asker, questions: Sequence[str], seed: int) -> list[Pair | None]:
    """What it knows of each question; None where it says that it knows nothing. Raises LlmFailed.

    A question that it passes over, or answers with no confidence between 0 and 1, has None as well.
    """

    def read(text: str) -> list[Pair | None]:
        listed = objects(text, len(questions))
        replied = {
            number for number, said in listed.items() if said.get("answer") is None or _confidence(said) is not None
        }
        pairs = [_pair(asked, listed.get(number)) for number, asked in enumerate(questions, 1)]
        if len(replied) < len(questions):
            lost = ", ".join(str(number) for number in range(1, len(questions) + 1) if number not in replied)
            why = f"under {lost} there is no answer with a confidence from 0 to 1"
            raise Unread(why, pairs if any(pairs) else None)
        return pairs

    ask = Ask(ANSWERS.render(questions=questions), _tokens(questions), seed=seed_of(seed, ANSWERS.id))
    return await asker.read(ask, read)


async def facts(asker: Asker, pairs: Sequence[Pair], seed: int) -> list[str | None]:
    """A declarative sentence for each pair, None where there is none. Raises LlmFailed where there is none at all."""

    def read(text: str) -> list[str | None]:
        listed = objects(text, len(pairs))
        said = [_sentence(listed.get(number)) for number in range(1, len(pairs) + 1)]
        if None in said:
            lost = ", ".join(str(number) for number, fact in enumerate(said, 1) if fact is None)
            raise Unread(f"under {lost} there is no declarative sentence", said if any(said) else None)
        return said

    shown = [{"question": pair.question, "answer": pair.answer} for pair in pairs]
    return await asker.read(Ask(FACTS.render(pairs=shown), _tokens(pairs), seed=seed_of(seed, FACTS.id)), read)


def _tokens(items: Sequence[Any]) -> int:
    return _MARGIN_TOKENS + _OBJECT_TOKENS * len(items)


def _pair(asked: str, said: Mapping[str, Any] | None) -> Pair | None:
    answer = None if said is None else line(said.get("answer"))
    confidence = None if said is None else _confidence(said)
    return Pair(asked, answer, confidence) if answer and confidence else None


def _confidence(said: Mapping[str, Any]) -> float | None:
    """None where it is no number from 0 to 1; "0.9" and "90%" are."""
    value = said.get("confidence")
    if isinstance(value, bool):
        return None
    try:
        text = str(value).strip()
        number = float(text.rstrip("% ")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 <= number <= 1 else None


def _sentence(said: Mapping[str, Any] | None) -> str | None:
    fact = None if said is None else line(said.get("fact"))
    return None if fact is None or question(fact) is not None else fact
