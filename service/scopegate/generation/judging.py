"""Judges questions: does the document answer them (ELOQ, Algorithm 1, step 10; B.3), and why not (RAG-ConfusionQA)."""

from __future__ import annotations

from scopegate.domain import ConfusionType
from scopegate.llm.asker import Asker, Votes, seed_of
from scopegate.llm.asks import Ask
from scopegate.llm.replies import verdict
from scopegate.prompts import load_prompt

FILTER = load_prompt("filter_answerable")
KIND = load_prompt("confusion_type")
_TOKENS = 768
# Votes differ enough at this to be worth counting, and keep to the form.
_VOTE_TEMPERATURE = 0.7


async def confusing(judge: Asker, document: str, question: str, votes: int, seed: int) -> Votes:
    """m votes on whether the question asks beyond the document, in one request. Raises LlmFailed."""

    def read(text: str) -> bool:
        return verdict(text, "Confusing", ("yes", "no")) == "yes"

    turns = FILTER.render(document=document, question=question)
    temperature = _VOTE_TEMPERATURE if votes > 1 else 0.0
    return await judge.votes(Ask(turns, _TOKENS, temperature, votes, seed=seed_of(seed, FILTER.id, question)), read)


async def confusion_type(judge: Asker, document: str, question: str, seed: int) -> str:
    """What is wrong with a question: a ConfusionType, or "none". Raises LlmFailed."""

    def read(text: str) -> str:
        return verdict(text, "Confusion", ("none", *ConfusionType))

    turns = KIND.render(document=document, question=question)
    return await judge.read(Ask(turns, _TOKENS, seed=seed_of(seed, KIND.id, question)), read)
