"""How evaluations ask: the gates, patiently, and LLMs for votes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from scopegate.domain import Check, GateStatus, Overloaded, Verdict
from scopegate.gate.gatekeeper import Gatekeeper
from scopegate.jobs.work import Item
from scopegate.llm.asker import Asker, seed_of
from scopegate.llm.asks import Ask
from scopegate.llm.replies import verdict
from scopegate.prompts import Prompt

_PATIENCE_S = 120.0
_PAUSE_S = 0.5
_VOTE_TOKENS = 768
# Votes differ enough at this to be worth counting, and keep to the form.
_VOTE_TEMPERATURE = 0.7


def chunks(count: int, size: int) -> Sequence[Item]:
    """Items that share the numbers 0 to count - 1 among them."""
    numbers = list(range(count))
    return [Item(f"{start}", {"numbers": numbers[start : start + size]}) for start in numbers[::size]]


async def judged(gatekeeper: Gatekeeper, check: Check) -> Verdict:
    """The gates' verdict, in two minutes at most; people who ask go first. Raises what Gatekeeper.judge raises."""
    end = time.perf_counter() + _PATIENCE_S
    while True:
        try:
            return (await gatekeeper.judge(check, end)).verdict
        except Overloaded:
            if time.perf_counter() > end:
                raise
            await asyncio.sleep(_PAUSE_S)


def refused(verdict: Verdict) -> bool | None:
    """Whether the gates refuse the question; None where one on which that depends gave no judgement."""
    deciding = [result for result in verdict.gates if verdict.refused_by in {None, result.gate}]
    return verdict.would_refuse if all(result.status is GateStatus.OK for result in deciding) else None


async def votes(judge: Asker, prompt: Prompt, label: str, count: int, seed: int, **variables: str) -> list[bool | None]:
    """`count` votes, in order, on a prompt whose replies end in LABEL: yes or no; None for one that cannot be read.

    Raises LlmFailed.
    """
    ask = Ask(
        prompt.render(**variables),
        _VOTE_TOKENS,
        _VOTE_TEMPERATURE if count > 1 else 0.0,
        count,
        seed=seed_of(seed, prompt.id, *map(str, variables.values())),
    )
    return await judge.cast(ask, lambda text: verdict(text, label, ("yes", "no")) == "yes")


def majority(cast: Sequence[bool | None]) -> bool | None:
    """What more than half of the votes say (ELOQ, Algorithm 2, steps 3 and 6); None where neither is."""
    return next((side for side in (True, False) if 2 * sum(vote is side for vote in cast) > len(cast)), None)
