"""Splits documents into sentences, each of which can stand as a fact."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

import sentencex

MAX_CHARACTERS = 1_000

# Nobody wraps prose narrower than this; shorter lines are headings, verses, addresses.
_NARROWEST_WRAP = 40
_LIST_ITEM = re.compile(r"\s*(?:[-*+•–‣▪◦·]|#{1,6}|\(?\d{1,2}[.)]|\(?[a-z]\))\s+\S")
_LONE_MARKER = re.compile(r"\(?\w{1,3}[.)]")
_CUTS = (re.compile(r"[;:]\s+|；"), re.compile(r",\s+|\s[-–—]\s|，|、"), re.compile(r"\s+"))


def split(text: str) -> list[str]:
    """The sentences of a text, in order, each a stripped piece of it, verbatim, of 1 to 1,000 characters.

    List items, headings and lines that end before the margin stand for themselves; lines that were only wrapped are
    read on. Pieces without a letter or a digit are left out. An ideograph counts as four characters: it is a token.
    """
    return [
        piece
        for block in _blocks(text)
        for sentence in _sentences(block)
        for piece in _cut(sentence)
        if any(map(str.isalnum, piece))
    ]


def _blocks(text: str) -> Iterator[str]:
    """Runs of lines that read on from one to the next."""
    paragraph: list[str] = []
    for line in [*text.splitlines(keepends=True), ""]:
        if line.strip():
            paragraph.append(line)
            continue
        width = max((len(held.rstrip()) for held in paragraph), default=0)
        block: list[str] = []
        for held in paragraph:
            if block and not _reads_on(block[-1], held, width):
                yield "".join(block)
                block = []
            block.append(held)
        if block:
            yield "".join(block)
        paragraph = []


def _reads_on(last: str, line: str, width: int) -> bool:
    """Whether a line continues the last one: its first word did not fit there, or it starts in lower case."""
    if _LIST_ITEM.match(line):
        return False
    return line.lstrip()[0].islower() or (
        width >= _NARROWEST_WRAP and len(last.rstrip()) + 1 + len(line.split(maxsplit=1)[0]) > width
    )


def _sentences(block: str) -> Iterator[str]:
    start = 0
    for found in sentencex.get_sentence_boundaries("en", block):
        piece = block[start : found["end_index"]].strip()
        # "1." is the number of the item that follows, not a sentence.
        if not _LONE_MARKER.fullmatch(piece):
            yield piece
            start = found["end_index"]
    yield block[start:].strip()


def _cut(sentence: str) -> Iterator[str]:
    """Cuts what is too long, best after a semicolon or a colon, else after a comma, else between words."""
    start = 0
    while (end := _room(sentence, start)) < len(sentence):
        for places in _CUTS:
            ends = [place.end() for place in places.finditer(sentence, (start + end) // 2, end)]
            if ends:
                end = ends[-1]
                break
        yield sentence[start:end].strip()
        start = end
    yield sentence[start:].strip()


def _room(sentence: str, start: int) -> int:
    """Where a piece that begins at start must have ended."""
    window = sentence[start : start + MAX_CHARACTERS + 1]
    costs = accumulate(4 if letter >= "\u2e80" else 1 for letter in window)
    return start + next((index for index, cost in enumerate(costs) if cost > MAX_CHARACTERS), len(window))
