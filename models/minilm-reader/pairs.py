"""What the reader learns from: questions on passages, with answer spans or labels, and what is made of them."""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[\"'(A-Z0-9])")
_NAME = re.compile(r"(?<!^)(?<![.?!] )\b[A-Z][a-z]+(?: [A-Z][a-z]+)*\b|\b\d[\d,.]*\d\b|\b\d\b")
_YES_NO = re.compile(r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should) ", re.IGNORECASE)
# One text in so many is held out.
_HELD_OUT = 20
_FEW_WORDS = 15
_MOST_SPANS = 8
# People who search leave the question mark out.
_UNMARKED = 0.3


@dataclass(frozen=True, slots=True)
class Pair:
    """A question and a passage. spans: where answers stand, in characters of the passage; None where not known."""

    question: str
    passage: str
    answerable: bool
    spans: Sequence[tuple[int, int]] | None


@dataclass(frozen=True, slots=True)
class Made:
    """How often something is made of an answerable question, a share for each way.

    Unanswerable ones: same: the question with another passage of the same text. random: with any passage. without: with
    its passage without the sentences that hold the answer. swapped: with a name or a number in it that the passage has
    not. Both: facts: with the sentence that answers among some of its passage and some strangers in no order, and with
    these without it.
    """

    same: float
    random: float
    without: float
    swapped: float
    facts: float


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl.gz file."""
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def group(row: Mapping[str, Any]) -> str:
    """The text that a row is of: an article, else a passage."""
    if row["source"] == "qamr":
        return ":".join(row["id"].split(":")[:3])
    name = row.get("doc", row.get("title"))
    return f"{row['source']}:{zlib.crc32(row['passage'].encode()) if name is None else name}"


def held_out(name: str) -> bool:
    """Whether a text is kept for checking and calibrating."""
    return zlib.crc32(name.encode()) % _HELD_OUT == 0


def pairs(files: Sequence[Path], made: Made, rng: random.Random) -> tuple[list[Pair], list[Pair]]:
    """Pairs to learn from, and those of held-out texts, the files' and the made ones, in no special order."""
    found: dict[bool, list[Pair]] = {False: [], True: []}
    for path in files:
        texts = defaultdict(list)
        for row in rows(path):
            texts[group(row)].append(row)
        for held, into in found.items():
            members = {name: mine for name, mine in texts.items() if held_out(name) is held}
            passages = [row["passage"] for mine in members.values() for row in mine]
            for mine in members.values():
                own = list(dict.fromkeys(row["passage"] for row in mine))
                for row in mine:
                    into += _of(row, own, passages, made, rng)
    for into in found.values():
        rng.shuffle(into)
    return found[False], found[True]


def _of(
    row: Mapping[str, Any], mine: Sequence[str], passages: Sequence[str], made: Made, rng: random.Random
) -> list[Pair]:
    question, passage = row["question"].strip(), row["passage"]
    if rng.random() < _UNMARKED:
        question = question.rstrip("?").rstrip()
    if not row["answerable"]:
        return [Pair(question, passage, False, ())]
    spans = _spans(passage, row["answers"]) or None
    found = [Pair(question, passage, True, spans)]
    others = [text for text in mine if text != passage]
    if rng.random() < made.same and others:
        found.append(Pair(question, rng.choice(others), False, ()))
    if rng.random() < made.random and (other := rng.choice(passages)) not in mine:
        found.append(Pair(question, other, False, ()))
    if spans and rng.random() < made.without and (left := _without(passage, spans)):
        found.append(Pair(question, left, False, ()))
    # "Was it in 2018?" is answered by another year: no.
    if (
        rng.random() < made.swapped
        and not _YES_NO.match(question)
        and (swapped := _swapped(question, passage, passages, rng))
    ):
        found.append(Pair(swapped, passage, False, ()))
    if spans and rng.random() < made.facts and (other := rng.choice(passages)) not in mine:
        found += _among_facts(question, row["answers"], passage, other, rng)
    return found


def _among_facts(question: str, answers: Sequence[str], passage: str, other: str, rng: random.Random) -> Iterator[Pair]:
    own = _SENTENCE.split(passage)
    holding = [sentence for sentence in own if any(answer in sentence for answer in answers)]
    if len(holding) != 1:
        return
    others = [sentence for sentence in own if sentence not in holding]
    strangers = _SENTENCE.split(other)
    facts = rng.sample(others, min(len(others), rng.randint(0, 3)))
    facts += rng.sample(strangers, min(len(strangers), rng.randint(0, 4)))
    rng.shuffle(facts)
    if facts:
        yield Pair(question, " ".join(facts), False, ())
    facts.insert(rng.randint(0, len(facts)), holding[0])
    text = " ".join(facts)
    if spans := _spans(text, answers):
        yield Pair(question, text, True, spans)


def _spans(passage: str, answers: Sequence[str]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for answer in answers:
        at = passage.find(answer) if answer.strip() else -1
        while at >= 0 and len(found) < _MOST_SPANS:
            found.append((at, at + len(answer)))
            at = passage.find(answer, at + 1)
    return found


def _without(passage: str, spans: Sequence[tuple[int, int]]) -> str | None:
    """The passage without the sentences that hold an answer; None where little is left."""
    kept, end = [], 0
    for sentence in _SENTENCE.split(passage):
        begin = passage.find(sentence, end)
        end = begin + len(sentence)
        if not any(first < end and last > begin for first, last in spans):
            kept.append(sentence)
    text = " ".join(kept)
    return text if len(text.split()) > _FEW_WORDS else None


def _swapped(question: str, passage: str, passages: Sequence[str], rng: random.Random) -> str | None:
    """The question with another name or number in the place of one that the passage has; None where that fails."""
    there = [match for match in _NAME.finditer(question) if match.group() in passage]
    if not there:
        return None
    match = rng.choice(there)
    number, length = match.group()[0].isdigit(), len(match.group().split())
    for _ in range(5):
        fit = [
            name
            for name in _NAME.findall(rng.choice(passages))
            if name[0].isdigit() == number and len(name.split()) == length and name not in passage
        ]
        if fit:
            return question[: match.start()] + rng.choice(fit) + question[match.end() :]
    return None
