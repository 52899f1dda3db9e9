"""Prepares documents: long enough to make claims of, short enough for a prompt (ELOQ, section 3.1)."""

from __future__ import annotations

import re

from scopegate.knowledge.sentences import split

LEAST_WORDS = 150
ENOUGH_WORDS = 300

# Characters that surely hold enough; more of them are not even split.
_WINDOW = 20_000
# An ideograph or a kana counts as a word; so does each run of other characters between spaces.
_IDEOGRAPHS = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\s{_IDEOGRAPHS}]+")


def word_count(text: str) -> int:
    """How many words a text has, in any script."""
    return sum(1 for _ in _WORD.finditer(text))


def shortened(text: str) -> str:
    """Whole sentences from the beginning, verbatim, until they have more than 300 words."""
    text = text.strip()
    end = count = 0
    for sentence in split(text[:_WINDOW]):
        end = text.index(sentence, end) + len(sentence)
        count += word_count(sentence)
        if count > ENOUGH_WORDS:
            return text[:end]
    return text if len(text) <= _WINDOW else text[:end]


def too_short(text: str) -> str | None:
    """Why a text is no document to make questions of; None where it is."""
    count = word_count(text)
    return f"{count} words, and at least {LEAST_WORDS} are needed" if count < LEAST_WORDS else None
