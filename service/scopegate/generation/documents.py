"""Prepares documents: long enough to make claims of, short enough for a prompt (ELOQ, section 3.1)."""

from __future__ import annotations

import re

from scopegate.knowledge.sentences import split

LEAST_WORDS = 150
ENOUGH_WORDS = 300

# Characters that hold enough of any language; more of them are not even split, nor sent to an LLM in each prompt.
_WINDOW = 8_000
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
    """Why a shortened text is no document to make questions of; None where it is."""
    count = word_count(text)
    if count >= LEAST_WORDS:
        return None
    return f"{count} {'word' if count == 1 else 'words'}, and at least {LEAST_WORDS} are needed"
