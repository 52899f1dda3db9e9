"""Makes a conversation's last turn a question that stands alone, so that it can be looked up and judged as one."""

from __future__ import annotations

from scopegate.domain import Speaker, Turn
from scopegate.gate.confusion import stands_alone
from scopegate.llm.client import Ask, Llm, LlmFailed
from scopegate.prompts import after_thoughts, load_prompt, plain
from scopegate.words import words

_TURNS = 10
_TURN_LENGTH = 2_000
_LONGEST = 4_096
_TOKENS = 1_024


class Condenser:
    """Asks the LLM, where the question does not stand alone already."""

    def __init__(self, llm: Llm) -> None:
        self._llm = llm
        self._prompt = load_prompt("condense")

    async def standalone(self, question: str, history: tuple[Turn, ...]) -> str:
        """The question, understandable without what was said before it: one line, at most 4,096 characters.

        The LLM sees the last ten turns, of each the first 2,000 characters. Raises LlmFailed where what it says is no
        question that could have come of these, Overloaded where there is no room to ask.
        """
        said = [turn for turn in history if turn.role is not Speaker.SYSTEM][-_TURNS:]
        if not said or stands_alone(question):
            return question
        shown = [Turn(turn.role, turn.content[:_TURN_LENGTH]) for turn in said]
        reply = await self._llm.complete(Ask(self._prompt.render(history=shown, question=question), _TOKENS))
        line = plain(after_thoughts(reply.texts[0]).strip())
        known = {word.stem for text in (question, *(turn.content for turn in shown)) for word in words(text)}
        if reply.cut[0] or len(line) > _LONGEST or len(line.splitlines()) != 1:
            raise LlmFailed("the LLM was to make the question stand alone and did not answer with one line")
        added = [word.stem not in known for word in words(line) if word.informative]
        if line != question and (not added or sum(added) * 2 > len(added)):
            raise LlmFailed("the LLM was to make the question stand alone and made it another")
        return line
