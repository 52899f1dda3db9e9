"""Writes questions: one on each guess, and others that the document answers (ELOQ, Algorithm 1, step 9; B.9, B.10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scopegate.llm.asker import Asker, seed_of
from scopegate.llm.asks import Ask
from scopegate.llm.replies import Unread, by_number, in_order, question
from scopegate.prompts import load_prompt

OUT_OF_SCOPE = load_prompt("out_of_scope_questions")
IN_SCOPE = load_prompt("in_scope_questions")
_LINE_TOKENS, _MARGIN_TOKENS = 60, 256


async def out_of_scope_questions(asker: Asker, document: str, guesses: Sequence[str], seed: int) -> Mapping[str, str]:
    """A question by guess, for those that gave one. Raises LlmFailed where none did."""

    def read(text: str) -> dict[str, str]:
        listed = by_number(text, len(guesses))
        asked = {number: asks for number, said in listed.items() if (asks := question(said)) is not None}
        by_guess = {guesses[number - 1]: asks for number, asks in sorted(asked.items())}
        if not listed:
            raise Unread("it has no line under the number of a claim")
        if len(asked) < len(listed):
            wrong = ", ".join(str(number) for number in sorted(listed.keys() - asked.keys()))
            raise Unread(f"what stands under {wrong} is no question, as it has no question mark", by_guess or None)
        return by_guess

    turns = OUT_OF_SCOPE.render(document=document, claims=guesses)
    tokens = _MARGIN_TOKENS + _LINE_TOKENS * len(guesses)
    return await asker.read(Ask(turns, tokens, seed=seed_of(seed, OUT_OF_SCOPE.id)), read)


async def in_scope_questions(asker: Asker, document: str, count: int, seed: int) -> list[str]:
    """Questions that the document is to answer, at most count. Raises LlmFailed where there is none."""

    def read(text: str) -> list[str]:
        questions = [asks for said in in_order(text) if (asks := question(said)) is not None][:count]
        if len(questions) < count:
            why = f"it has {len(questions)} questions on numbered lines where {count} are needed"
            raise Unread(why, questions or None)
        return questions

    turns = IN_SCOPE.render(document=document, count=count)
    ask = Ask(turns, _MARGIN_TOKENS + _LINE_TOKENS * count, seed=seed_of(seed, IN_SCOPE.id))
    return await asker.read(ask, read)
