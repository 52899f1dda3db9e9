"""The soft gate: the LLM's own word that the evidence answers the question (Learn to Refuse, section 3.3)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scopegate.domain import Confusion, ConfusionType, GateName, Policy, Turn
from scopegate.gate.confusion import located, one_line
from scopegate.gate.gate import GateBroken, Judgement
from scopegate.gate.retrieval import Case
from scopegate.llm.client import Ask, Llm, by_id
from scopegate.prompts import MARKUP, load_prompt, plain

_VOTE_TOKENS = 768
# Votes differ enough at this to be worth counting, and keep to the format.
_VOTE_TEMPERATURE = 0.7
_MOST_PHRASES = 3
_LABELS = {"confusion", "phrase", "explanation", "answerable"}
_QUOTES = "\"'“”‘’«»"
# Below this share of what it would say first, the LLM speaks of something else.
_LEAST_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class _Vote:
    answerable: bool
    type: ConfusionType | None
    phrases: tuple[str, ...]
    explanation: str | None


class _Unread(Exception):
    """A reply is no vote; says why, so that the LLM can mend it."""


class SoftGate:
    """Asks for m reasoned votes in one request; the share of yes is the score.

    A vote counts by its last line alone. Those that cannot be read count for neither side; where they could decide,
    they are asked for once more, with the error named. A tie refuses.
    """

    name = GateName.SOFT
    depth = 1

    def __init__(self, llm: Llm) -> None:
        self._llm = llm
        self._prompt = load_prompt("judge")

    def threshold(self, policy: Policy) -> float:
        """The least share that is a majority of m."""
        return _majority(policy.votes) / policy.votes

    async def judge(self, case: Case, policy: Policy) -> Judgement:
        """See Gate. Refuses without asking where there is nothing to read."""
        if not case.reading:
            return Judgement(0.0, passed=False)
        votes, error = await self._votes(case, policy, policy.votes, "")
        if _open(votes, policy.votes):
            more, error = await self._votes(case, policy, policy.votes - len(votes), error)
            votes += more
        if _open(votes, policy.votes):
            raise GateBroken(
                f"{len(votes)} of the LLM's {policy.votes} votes can be read; the last that cannot: {error}"
            )
        refusing = [vote for vote in votes if not vote.answerable]
        yes, no = len(votes) - len(refusing), len(refusing)
        score = yes / policy.votes
        passed = score >= self.threshold(policy)
        detail = {"yes": yes, "no": no, "unread": policy.votes - len(votes), **_by_whom(self._llm, self._prompt.id)}
        return Judgement(score, passed, detail, None if passed else _confusion(refusing, case.question))

    async def _votes(self, case: Case, policy: Policy, wanted: int, error: str) -> tuple[list[_Vote], str]:
        """The votes that can be read, and why the last of the others cannot. error: what was wrong before."""
        turns = self._prompt.render(passages=_texts(case), question=case.question, error=error)
        temperature = _VOTE_TEMPERATURE if policy.votes > 1 else 0.0
        reply = await self._llm.complete(Ask(turns, _VOTE_TOKENS, temperature, wanted))
        votes, error = [], "it did not come"
        for text, cut in zip(reply.texts[:wanted], reply.cut, strict=False):
            try:
                votes.append(_vote(text, cut))
            except _Unread as unread:
                error = str(unread)
        return votes, error


class FastSoftGate:
    """Asks for one token: P(yes) against P(no) as the LLM's first word is the score. It gives no reasons."""

    name = GateName.SOFT
    depth = 1

    def __init__(self, llm: Llm) -> None:
        self._llm = llm
        self._prompt = load_prompt("answerable")

    def threshold(self, policy: Policy) -> float:
        """Yes is at least as likely as no."""
        return 0.5

    async def judge(self, case: Case, policy: Policy) -> Judgement:
        """See Gate. Refuses without asking where there is nothing to read."""
        if not case.reading:
            return Judgement(0.0, passed=False)
        yes, no = await self._labels(self._prompt.render(passages=_texts(case), question=case.question))
        if yes + no < _LEAST_SHARE:
            raise GateBroken("the LLM's first word is neither yes nor no")
        score = yes / (yes + no)
        detail = {"p_yes": yes, "p_no": no, **_by_whom(self._llm, self._prompt.id)}
        return Judgement(score, score >= self.threshold(policy), detail)

    async def _labels(self, turns: tuple[Turn, ...]) -> tuple[float, float]:
        """The probabilities that the reply begins with yes and with no, in any way of writing them."""
        able = self._llm.capabilities
        # By id where that is possible: in vLLM, top logprobs are what a probe's requests beside this one would change.
        ids = able.label_ids if able is not None and able.token_logprobs else None
        if ids is not None:
            reply = await self._llm.complete(Ask(turns, max_tokens=1, token_ids=ids.yes + ids.no))
            of = by_id(reply.first)
            said = [("yes", of[token]) for token in ids.yes if token in of]
            said += [("no", of[token]) for token in ids.no if token in of]
        else:
            reply = await self._llm.complete(Ask(turns, max_tokens=1, top_logprobs=20))
            said = [(token.strip(" \n▁Ġ").casefold(), logprob) for token, logprob in reply.first.items()]
        if not said:
            raise GateBroken("the LLM server gives no logprobs, which fast judging needs")
        yes, no = (math.fsum(math.exp(p) for word, p in said if word == label) for label in ("yes", "no"))
        return yes, no


def _majority(votes: int) -> int:
    return votes // 2 + 1


def _open(votes: Sequence[_Vote], wanted: int) -> bool:
    """Whether the votes that cannot be read could still decide."""
    yes = sum(vote.answerable for vote in votes)
    return yes < _majority(wanted) <= yes + wanted - len(votes)


def _texts(case: Case) -> list[str]:
    return [evidence.text for evidence in case.reading]


def _by_whom(llm: Llm, prompt: str) -> Mapping[str, Any]:
    return {"model": llm.model, "prompt": prompt}


def _vote(text: str, cut: bool) -> _Vote:
    """Raises _Unread where the reply does not end as it should, or contradicts itself."""
    if cut:
        raise _Unread("it was cut off before its last line, so reason more briefly")
    lines = _labelled(text)
    words = [value.rstrip(".").casefold() for label, value in lines if label == "answerable"]
    if len(words) != 1 or words[0] not in {"yes", "no"} or lines[-1][0] != "answerable":
        raise _Unread("it did not end with the one line Answerable: yes or Answerable: no")
    types = {value.rstrip(".").casefold() for label, value in lines if label == "confusion"} & set(ConfusionType)
    if words[0] == "yes" and types:
        raise _Unread("it named a confusion and yet ended with Answerable: yes")
    explanation = next((value for label, value in lines if label == "explanation" and value), None)
    return _Vote(
        answerable=words[0] == "yes",
        type=ConfusionType(types.pop()) if len(types) == 1 else None,
        phrases=tuple(value.strip(_QUOTES) for label, value in lines if label == "phrase")[:_MOST_PHRASES],
        explanation=one_line(plain(explanation)) if explanation else None,
    )


def _labelled(text: str) -> list[tuple[str, str]]:
    """The labelled lines that the text ends with, in order; what stands before them is reasoning."""
    lines: list[tuple[str, str]] = []
    for line in reversed(re.split(r"[\r\n]+", text.rstrip())):
        label, _, value = line.strip(MARKUP).partition(":")
        if (name := label.strip(MARKUP).casefold()) in _LABELS:
            lines.append((name, value.strip(MARKUP)))
        elif line.strip(MARKUP):
            break
    return lines[::-1]


def _confusion(refusing: Sequence[_Vote], question: str) -> Confusion | None:
    """What most of them say; the phrases of all that say it, where they are the question's; the first explanation."""
    counted = Counter(vote.type for vote in refusing if vote.type is not None)
    if not counted:
        return None
    kind, _ = counted.most_common(1)[0]
    agreeing = [vote for vote in refusing if vote.type is kind]
    phrases = [form for vote in agreeing for phrase in vote.phrases for form in (plain(phrase), phrase)]
    explanation = next((vote.explanation for vote in agreeing if vote.explanation), None)
    return Confusion(kind, located(phrases, question), explanation)
