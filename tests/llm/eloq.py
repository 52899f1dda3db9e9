"""A world of three documents that a scripted LLM knows all about: what it claims, guesses, asks and judges."""

from __future__ import annotations

import html
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.scripted import Asked, Said

FILLER = "The wind comes from the west on most days, and the boats are tied up twice before it turns at night. "


@dataclass(frozen=True)
class Place:
    """A document about a place, and what there is to say of it.

    guesses: what the LLM imagines in the place of claim i, n times over: it ends with the time, so that rounds differ.
    """

    name: str

    @property
    def claims(self) -> list[str]:
        return [
            f"{self.name} has a wooden pier.",
            f"The pier of {self.name} was built in 1902.",
            f"The ferry to {self.name} takes 55 minutes.",
            f"The harbour master of {self.name} is Ann Weir.",
            f"The lighthouse of {self.name} is white.",
            f"{self.name} has one school.",
        ]

    @property
    def text(self) -> str:
        return " ".join(self.claims) + "\n\n" + FILLER * 7

    @property
    def document(self) -> dict[str, Any]:
        return {
            "id": self.name.lower().replace(" ", "_"),
            "title": f"A day in {self.name}",
            "text": self.text,
            "topic": "travel",
        }

    def guess(self, number: int, time: int) -> str:
        what = {
            1: f"{self.name} has a casino by the water",
            2: f"A storm closed the pier of {self.name} for a whole year",
            3: f"The captain of the ferry to {self.name} is a former pilot",
            4: f"The lighthouse of {self.name} is painted white all over",
            5: f"The museum of {self.name} shows whale bones",
            6: f"The school of {self.name} teaches sailing",
        }[number]
        return f"{what}, as version {time} has it."

    @property
    def questions(self) -> dict[int, str]:
        """By the guess's number; the fifth is another wording of the first, the sixth does not come."""
        return {
            1: f"Who owns the casino that stands by the water in {self.name}?",
            2: f"How long did a storm keep the pier of {self.name} closed?",
            3: f"What was the job of the captain of the ferry to {self.name} before?",
            5: f"Who is the owner of the casino that stands by the water in {self.name}?",
        }

    @property
    def in_scope(self) -> list[str]:
        return [
            f"When was the wooden pier of {self.name} built?",
            f"Which famous bakery of {self.name} sells rye bread?",
        ]

    @property
    def votes(self) -> dict[str, list[str]]:
        """By question: whether it is confusing."""
        said = {number: ["yes", "yes", "yes"] for number in self.questions}
        said |= {2: ["yes", "no", "yes"], 3: ["no", "no", "yes"]}
        votes = {question: said[number] for number, question in self.questions.items()}
        return votes | dict(zip(self.in_scope, (["no", "no", "no"], ["yes", "yes", "no"]), strict=True))

    @property
    def kinds(self) -> dict[str, str]:
        return {self.questions[1]: "not_mentioned", self.questions[2]: "false_premise", self.questions[5]: "ambiguous"}

    def rows(self, seed: int) -> list[dict[str, Any]]:
        """The data set that must come of the document with two rounds, but for times."""
        name = self.document["id"]
        common = {
            "document_id": name,
            "topic": "travel",
            "generator": "scripted-1",
            "judge": "scripted-1",
            "seed": seed,
        }
        prompts = ["extract_claims", "recover_claims", "remove_claims", "out_of_scope_questions", "filter_answerable"]
        beyond = {"in_scope": False, "prompts": [f"{prompt}@1" for prompt in [*prompts, "confusion_type"]]}
        return [
            common
            | beyond
            | {
                "id": f"{name}_1_1",
                "question": self.questions[1],
                "claim": self.guess(1, 2),
                "confusion": "not_mentioned",
                "votes": {"yes": 3, "no": 0, "unread": 0},
            },
            common
            | beyond
            | {
                "id": f"{name}_1_2",
                "question": self.questions[2],
                "claim": self.guess(2, 2),
                "confusion": "false_premise",
                "votes": {"yes": 2, "no": 1, "unread": 0},
            },
            common
            | {
                "id": f"{name}_0_1",
                "in_scope": True,
                "question": self.in_scope[0],
                "claim": None,
                "confusion": None,
                "votes": {"yes": 0, "no": 3, "unread": 0},
                "prompts": ["in_scope_questions@1", "filter_answerable@1"],
            },
        ]


PLACES = [Place("Port Alder"), Place("Solvik Bay"), Place("Heron Quay")]
TASKS = {
    "claims that matter most": "claims",
    "claims were lost": "recover",
    "supported neither by": "remove",
    "best questions that the document": "in_scope",
    "supports none of these invented": "questions",
    "Does anything in the question confuse": "filter",
    "Can the question be answered faithfully": "kind",
}


def task(asked: Asked) -> str:
    """Which of the prompts a request is, by what it asks for at first."""
    text = first_turn(asked)
    return next(name for words, name in TASKS.items() if words in text)


def first_turn(asked: Asked) -> str:
    """The turn with the material; what follows it are replies and what is wrong with them."""
    turns = [turn["content"] for turn in asked.body["messages"] if turn["role"] == "user"]
    return str(next(turn for turn in reversed(turns) if any(words in turn for words in TASKS)))


def tagged(tag: str, text: str) -> list[str]:
    return [html.unescape(found) for found in re.findall(rf"<{tag}(?: [^>]*)?>(.*?)</{tag}>", text, re.DOTALL)]


def listed(items: dict[int, str]) -> str:
    return "\n".join(f"{number}. {text}" for number, text in items.items())


@dataclass
class World:
    """A script. times: how often each claim of each place was guessed so far."""

    times: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def __call__(self, asked: Asked) -> Said | str:
        text = first_turn(asked)
        place = next(place for place in PLACES if place.name in text)
        reply = getattr(self, f"_{task(asked)}")(place, text)
        assert isinstance(reply, Said | str)
        return reply

    def _claims(self, place: Place, text: str) -> str:
        return listed(dict(enumerate(place.claims, 1)))

    def _recover(self, place: Place, text: str) -> str:
        shown = dict(enumerate(tagged("claim", text), 1))
        for number, claim in shown.items():
            if claim == "(missing)":
                self.times[place.name][number] += 1
                shown[number] = place.guess(number, self.times[place.name][number])
        return listed(shown)

    def _remove(self, place: Place, text: str) -> str:
        invented = tagged("claim", text.split("<invented_claims>")[1])
        return listed({number: claim for number, claim in enumerate(invented, 1) if "lighthouse" not in claim})

    def _questions(self, place: Place, text: str) -> str:
        said = {}
        for position, claim in enumerate(tagged("claim", text), 1):
            number = next(number for number in range(1, 7) if claim.startswith(place.guess(number, 0)[:-20]))
            if number in place.questions:
                said[position] = place.questions[number]
        return listed(said)

    def _in_scope(self, place: Place, text: str) -> str:
        return listed(dict(enumerate(place.in_scope, 1)))

    def _filter(self, place: Place, text: str) -> Said:
        (question,) = tagged("question", text)
        return Said([f"I compare them.\nConfusing: {vote}" for vote in place.votes[question]])

    def _kind(self, place: Place, text: str) -> str:
        (question,) = tagged("question", text)
        return f"Let me see.\nConfusion: {place.kinds[question]}"
