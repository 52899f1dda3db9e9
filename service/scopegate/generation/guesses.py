"""Guided hallucination: masks claims and has them guessed from the others (ELOQ, Algorithm 1, steps 2 to 7).

The LLM that guesses never sees the document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scopegate.generation.claims import LINE_TOKENS, MARGIN_TOKENS
from scopegate.llm.asker import Asker, seed_of
from scopegate.llm.asks import Ask, LlmAway, LlmFailed
from scopegate.llm.replies import Unread, by_number, normal
from scopegate.prompts import load_prompt

PROMPT = load_prompt("recover_claims")
# Rounds are to lead away from what was there, so the most likely guess is not the one wanted each time.
_TEMPERATURE = 0.7
_MASK = "missing"


def partition(count: int, parts: int) -> list[tuple[int, ...]]:
    """The subsets S_1 to S_k of the claims 1 to count: S_j has those with i mod k = j - 1; empty ones are left out."""
    subsets = (tuple(i for i in range(1, count + 1) if i % parts == j) for j in range(parts))
    return [subset for subset in subsets if subset]


async def guess_claims(
    asker: Asker,
    claims: Sequence[str],
    *,
    rounds: int,
    partitions: int,
    seed: int,
    failed: Callable[[LlmFailed], None],
) -> list[str | None]:
    """What stands in each claim's place after the rounds; None where nothing was ever guessed there.

    failed: told of a request that gave no guess; its claims stay as they were, and the rest goes on. Raises LlmAway.
    """
    now = list(claims)
    guessed: set[int] = set()
    for round_ in range(1, rounds + 1):
        for part, masked in enumerate(partition(len(now), partitions), 1):
            shown = [None if number in masked else claim for number, claim in enumerate(now, 1)]
            try:
                guesses = await _recover(asker, shown, masked, seed_of(seed, PROMPT.id, round_, part))
            except LlmAway:
                raise
            except LlmFailed as error:
                failed(error)
                continue
            for number, guess in guesses.items():
                now[number - 1] = guess
            guessed |= guesses.keys()
    return [claim if number in guessed else None for number, claim in enumerate(now, 1)]


async def _recover(asker: Asker, shown: Sequence[str | None], masked: Sequence[int], seed: int) -> dict[int, str]:
    """Guesses for the masked claims, by number. Raises LlmFailed where there is none."""
    there = {normal(claim) for claim in shown if claim is not None}

    def read(text: str) -> dict[int, str]:
        listed = by_number(text, len(shown))
        # A list that was renumbered has a claim that was there in the place of one that was not.
        guesses = {
            number: listed[number]
            for number in masked
            if number in listed and normal(listed[number]).strip("()") != _MASK and normal(listed[number]) not in there
        }
        if len(guesses) < len(masked):
            lost = ", ".join(str(number) for number in masked if number not in guesses)
            why = f"nothing new stands under {lost}; all {len(shown)} claims are wanted, each under its own number"
            raise Unread(why, guesses or None)
        return guesses

    tokens = MARGIN_TOKENS + LINE_TOKENS * len(shown)
    return await asker.read(Ask(PROMPT.render(claims=shown), tokens, _TEMPERATURE, seed=seed), read)
