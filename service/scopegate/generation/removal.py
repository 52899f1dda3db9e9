"""Removes the guesses that happen to be true (ELOQ, Algorithm 1, step 8; appendix B.11)."""

from __future__ import annotations

from collections.abc import Sequence

from scopegate.generation.claims import LINE_TOKENS, MARGIN_TOKENS
from scopegate.llm.asker import Asker, seed_of
from scopegate.llm.asks import Ask
from scopegate.llm.replies import Entry, Unread, entries, last_line, normal
from scopegate.prompts import load_prompt
from scopegate.words import words

PROMPT = load_prompt("remove_claims")
_NONE = "none"
# A line that shares fewer of its words with a guess is not that guess.
_SAME = 0.5


async def unsupported(
    asker: Asker, document: str, claims: Sequence[str], guesses: Sequence[str], seed: int
) -> list[str]:
    """The guesses that neither the document nor a claim supports, in their order, each once.

    A guess that is a claim word for word goes without asking. Raises LlmFailed: then none is known to be unsupported.
    """
    known = {normal(claim) for claim in claims}
    invented = list({normal(guess): guess for guess in guesses if normal(guess) not in known}.values())
    if not invented:
        return []

    def read(text: str) -> list[str]:
        kept = {number for entry in entries(text) if (number := _which(entry, invented)) is not None}
        if not kept and normal(last_line(text)) != _NONE:
            raise Unread("none of its lines is one of the invented claims under its number, nor is it the word none")
        return [guess for number, guess in enumerate(invented) if number in kept]

    turns = PROMPT.render(document=document, true_claims=claims, false_claims=invented)
    ask = Ask(turns, MARGIN_TOKENS + LINE_TOKENS * len(invented), seed=seed_of(seed, PROMPT.id))
    return await asker.read(ask, read)


def _which(entry: Entry, invented: Sequence[str]) -> int | None:
    """Which guess a line is: by its words, since a list may have been numbered anew; of two as like, by its number."""
    said = {word.stem for word in words(entry.text)}
    if not said:
        return None

    def likeness(index: int) -> tuple[float, bool]:
        guess = {word.stem for word in words(invented[index])}
        return len(said & guess) / len(said | guess), index + 1 == entry.number

    best = max(range(len(invented)), key=likeness)
    return best if likeness(best)[0] >= _SAME else None
