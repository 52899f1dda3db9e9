"""The soft gate where an answer is under way: its own word that it can answer."""

from __future__ import annotations

import asyncio

from scopegate.answering.draft import Draft
from scopegate.domain import GateName, Policy
from scopegate.gate.gate import Gate, GateBroken, Judgement
from scopegate.gate.retrieval import Case
from scopegate.llm.client import LlmFailed


class OwnWord:
    """Read off a draft, and off votes beside it where the policy wants several or another LLM judges."""

    name = GateName.SOFT

    def __init__(self, draft: Draft, soft: Gate, *, judges: bool) -> None:
        """soft: takes the votes. judges: whether a single vote is the draft's to give."""
        self._draft = draft
        self._soft = soft
        self._judges = judges
        self.depth = soft.depth

    def threshold(self, policy: Policy) -> float:
        """See Gate."""
        return self._soft.threshold(policy) if self._votes(policy) else 1.0

    async def judge(self, case: Case, policy: Policy) -> Judgement:
        """See Gate. A no refuses at once, whatever the other does."""
        if not self._votes(policy):
            return await self._draft.judged(case)
        own = asyncio.create_task(self._draft.judged(case))
        votes = asyncio.create_task(self._soft.judge(case, policy))
        failed: Exception | None = None
        try:
            for judging in asyncio.as_completed((own, votes)):
                try:
                    judgement = await judging
                except (GateBroken, LlmFailed) as error:
                    failed = error
                else:
                    if not judgement.passed:
                        return judgement
        finally:
            own.cancel()
            votes.cancel()
            await asyncio.gather(own, votes, return_exceptions=True)
        if failed is not None:
            raise failed
        # Heard again, since it may have broken off while the votes were counted.
        detail = {**(await self._draft.judged(case)).detail, **votes.result().detail}
        return Judgement(votes.result().score, True, detail)

    def _votes(self, policy: Policy) -> bool:
        return GateName.SOFT in policy.gates and (policy.votes > 1 or not self._judges)
