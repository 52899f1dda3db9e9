"""A script for the three agents of knowledge enrichment: it asks, answers and states what it is told to."""

from __future__ import annotations

from typing import Any

import orjson

from tests.llm.eloq import tagged
from tests.scripted import Asked, Said, by_prompt

# Question, answer, confidence, fact.
KNOWN: list[tuple[str, str | None, Any, str | None]] = [
    ("How long is the Rhine?", "1,233 kilometres.", 0.95, "The Rhine is 1,233 kilometres long."),
    ("Who painted The Night Watch?", "Rembrandt did.", "90%", "Rembrandt painted The Night Watch."),
    ("What does the harbour master of Port Alder earn?", None, 0, None),
    ("When was the first telegram sent from Oslo?", "In 1855, perhaps.", 0.4, "The first telegram left Oslo in 1855."),
]


class Agents:
    """A script: all that KNOWN holds, to everybody who asks."""

    def __init__(self, known: list[tuple[str, str | None, Any, str | None]] = KNOWN) -> None:
        self.known = known

    def __call__(self, asked: Asked) -> Said | str:
        return by_prompt(
            {
                "You think of questions": self.questions,
                "You answer questions of fact": self.answers,
                "You turn pairs": self.facts,
            }
        )(asked)

    def questions(self, asked: Asked) -> str:
        return "\n".join(f"{number}. {question}" for number, (question, *_) in enumerate(self.known, 1))

    def answers(self, asked: Asked) -> str:
        by_question = {question: (answer, confidence) for question, answer, confidence, _ in self.known}
        said = [
            {"number": number, "answer": by_question[question][0], "confidence": by_question[question][1]}
            for number, question in enumerate(tagged("question", asked.user), 1)
        ]
        return f"```json\n{orjson.dumps(said).decode()}\n```"

    def facts(self, asked: Asked) -> str:
        by_question = {question: fact for question, _, _, fact in self.known}
        said = [
            {"number": number, "fact": by_question[question]}
            for number, question in enumerate(tagged("question", asked.user), 1)
        ]
        return orjson.dumps(said).decode()
