"""Citations in an answer's text: [2], or [1, 3]."""

from __future__ import annotations

import re

from scopegate.gate.confusion import visible
from scopegate.prompts import plain

_CITATION = re.compile(r"\[[ ]*[0-9]+(?:[ ]*[,;][ ]*[0-9]+)*[ ]*\]")
_BEGUN = re.compile(r"\[[0-9,; ]*")
_ENTITY_BEGUN = re.compile(r"&[a-z#0-9]{0,4}")
# Python refuses to read numbers of thousands of digits; nobody reads so many passages.
_MOST_DIGITS = 9


class _Shown(dict[int, int | None]):
    """For str.translate: what becomes of a character."""

    def __missing__(self, code: int) -> int | None:
        self[code] = code if visible(chr(code)) else None
        return self[code]


_SHOWN = _Shown({ord("\t"): ord("\t"), ord("\n"): ord("\n")})


def cited(text: str, passages: int, *, complete: bool) -> tuple[str, tuple[int, ...]]:
    """The text as it may be shown, and the passages that it cites, 1 to `passages`, in order of first citation.

    In the text shown, [n] is the n-th of those: citations are renumbered, what they name beyond the passages is left
    out, and what the prompt escaped is plain again. complete: whether the text is all there; if not, an end that may
    yet become a citation is kept back, so that what is shown of a longer text begins with what was shown of a shorter.
    """
    text = _readable(text) if complete else _settled(text)
    order: list[int] = []
    shown = ""
    end = 0
    for found in _CITATION.finditer(text):
        labels = [int(label) for label in re.findall(r"[0-9]+", found.group()) if len(label) <= _MOST_DIGITS]
        known = [label for label in dict.fromkeys(labels) if 1 <= label <= passages]
        order += [label for label in known if label not in order]
        before = text[end : found.start()]
        marks = "[" + ", ".join(str(order.index(label) + 1) for label in known) + "]"
        shown += before + marks if known else before.rstrip()
        end = found.end()
    shown += text[end:]
    return shown.strip(), tuple(order)


def _readable(text: str) -> str:
    """As readers see it: what they cannot see goes before citations are looked for, or [1\x07] would pass for text."""
    return plain(text).translate(_SHOWN)


def _settled(text: str) -> str:
    entity = text.rfind("&")
    if entity >= 0 and _ENTITY_BEGUN.fullmatch(text, entity):
        text = text[:entity]
    text = _readable(text)
    opening = text.rfind("[")
    if opening >= 0 and _BEGUN.fullmatch(text, opening):
        text = text[:opening]
    return text.rstrip()
