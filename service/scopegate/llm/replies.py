"""Reads what an LLM wrote: lists, a last line, JSON. Forgiving in how it is dressed, strict in what it must say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from scopegate.prompts import MARKUP, plain

MAX_LINE = 1_000

_THOUGHT_BEGINS, _THOUGHT_ENDS = "<think>", "</think>"
_QUOTES = "\"'“”‘’«»`"
# 1. 1) (1) [1] 1: 1 - **1.** - 1. Claim 1: Question #1. But neither 12:30 nor 3.5 million.
_NUMBERED = re.compile(
    r"[\s>*_#`|•–-]*(?:(?:claim|fact|question|guess|item|pair|answer|no|q)\b\.?\s*#?)?[(\[]*(\d{1,3})[*_]*"
    r"(?:[\])]+[.:]?|[.:．、](?!\d)|\s[-–—:](?=\s))[*_\s]*(.*)",
    re.IGNORECASE,
)
_BULLET = re.compile(r"\s*[-*+•–—]\s+(.*)")
# What the prompts put around data; an LLM may imitate it.
_TAG = re.compile(r"</?(?:claim|question|fact|pair|answer|guess)(?:\s[^<>]*)?>", re.IGNORECASE)
# **Question:** Who ...? The number has said already what it is.
_LABEL = re.compile(r"[*_]*(?:claim|question|fact|guess|answer)[*_]*\s*:[*_\s]*", re.IGNORECASE)
# Who ...? (13 words)
_QUESTION = re.compile(r"(.*[?？؟])[\"'”’*_]*(?:\s*[(\[][^()\[\]]*[)\]])?")
_ENDS = tuple(".?!…。？！؟")
# Persian and emoji are written with them; no other unprintable character is wanted.
_JOINERS = "\u200c\u200d"
_OBJECT = re.compile(r"\{[^{}]*\}")


class Unread(Exception):
    """A reply is not what was asked for; says why, so that the LLM can mend it. usable: what it holds all the same."""

    def __init__(self, why: str, usable: Any = None) -> None:
        super().__init__(why)
        self.usable = usable


@dataclass(frozen=True, slots=True)
class Entry:
    """An item of a list; number: as it stands there, None for a bullet."""

    number: int | None
    text: str


def spoken(text: str) -> str:
    """A reply without what a reasoning model thought before it; nothing where it never stopped to think."""
    _, _, said = text.rpartition(_THOUGHT_ENDS)
    return "" if _THOUGHT_BEGINS in said else said.strip()


def entries(text: str) -> list[Entry]:
    """The items of a list, in any style of numbering, or of bullets where nothing has a number.

    Prose before, between and after is passed over. A line that goes on with an unfinished item belongs to it.
    """
    lines = [_TAG.sub("", line) for line in spoken(text).splitlines()]
    pattern = _NUMBERED if any(_NUMBERED.fullmatch(line) for line in lines) else _BULLET
    found: list[tuple[int | None, str]] = []
    open_item = False
    for line in lines:
        if match := pattern.fullmatch(line):
            found.append((int(match[1]) if pattern is _NUMBERED else None, match[match.lastindex or 1]))
        elif open_item and line.strip() and not _BULLET.fullmatch(line):
            number, begun = found[-1]
            found[-1] = (number, f"{begun} {line}")
        else:
            open_item = False
            continue
        open_item = not found[-1][1].rstrip(MARKUP + _QUOTES).endswith(_ENDS)
    cleaned = [Entry(number, _clean(text)) for number, text in found]
    return [entry for entry in cleaned if any(map(str.isalnum, entry.text)) and len(entry.text) <= MAX_LINE]


def in_order(text: str) -> list[str]:
    """A list's items in order, whatever their numbers, each once."""
    return list({normal(entry.text): entry.text for entry in entries(text)}.values())


def by_number(text: str, upto: int) -> dict[int, str]:
    """A list's items by number, 1 to upto; of a number that stands twice, the first.

    Bullets are counted where there are as many as there are numbers.
    """
    found = entries(text)
    if len(found) == upto and all(entry.number is None for entry in found):
        return {number: entry.text for number, entry in enumerate(found, 1)}
    numbered: dict[int, str] = {}
    for entry in found:
        if entry.number is not None and 1 <= entry.number <= upto:
            numbered.setdefault(entry.number, entry.text)
    return numbered


def last_line(text: str) -> str:
    """The last line that says something, without markup."""
    lines = [line.strip(MARKUP) for line in spoken(text).splitlines()]
    return next((line for line in reversed(lines) if line), "")


def verdict(text: str, label: str, choices: Sequence[str]) -> str:
    """Which of the choices the last line names: LABEL: CHOICE. Raises Unread where it is no such line."""
    said, _, value = last_line(text).partition(":")
    value = value.strip(MARKUP).rstrip(".").casefold()
    if said.strip(MARKUP).casefold() != label.casefold() or value not in choices:
        forms = " or ".join(f"{label}: {choice}" for choice in choices)
        raise Unread(f"its last line must be {forms}, with nothing after it")
    return value


def objects(text: str, upto: int) -> dict[int, Mapping[str, Any]]:
    """The objects of a JSON list by their field number, 1 to upto; of a number that stands twice, the first.

    A list that stands in prose or a code block, was cut off, or is an object a line, is read as far as it goes.
    """
    numbered: dict[int, Mapping[str, Any]] = {}
    for found in _objects(spoken(text)):
        number = found.get("number")
        if isinstance(number, str) and number.isascii() and number.isdecimal() and len(number) <= 3:
            number = int(number)
        if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= upto:
            numbered.setdefault(number, found)
    return numbered


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    begin, end = text.find("["), text.rfind("]")
    try:
        listed = orjson.loads(text[begin : end + 1]) if 0 <= begin < end else None
    except orjson.JSONDecodeError:
        listed = None
    if isinstance(listed, list):
        yield from (found for found in listed if isinstance(found, dict))
        return
    for match in _OBJECT.finditer(text):
        try:
            found = orjson.loads(match[0])
        except orjson.JSONDecodeError:
            continue
        yield found


def line(value: Any) -> str | None:
    """A text of JSON as one line; None where it is none, is empty or too long."""
    if not isinstance(value, str):
        return None
    text = _clean(value)
    return text if any(map(str.isalnum, text)) and len(text) <= MAX_LINE else None


def question(text: str) -> str | None:
    """The question that a line is, without a remark in brackets after it; None where it has no question mark."""
    match = _QUESTION.fullmatch(text)
    return match[1] if match else None


def normal(text: str) -> str:
    """What two texts are compared by, so that case, spaces and the final stop make no difference."""
    return " ".join(text.casefold().split()).rstrip(" .?!")


def _clean(text: str) -> str:
    spaced = " ".join(plain(text).split())
    joined = " ".join("".join(letter for letter in spaced if letter.isprintable() or letter in _JOINERS).split())
    label = _LABEL.match(joined)
    stripped = (joined[label.end() :] if label else joined).strip("*_` \t")
    if len(stripped) > 1 and stripped[0] in _QUOTES and stripped[-1] in _QUOTES:
        stripped = stripped[1:-1].strip()
    return stripped
