"""Extracts what a document claims (ELOQ, Algorithm 1, step 1; appendix B.1)."""

from __future__ import annotations

from scopegate.llm.asker import Asker, seed_of
from scopegate.llm.asks import Ask
from scopegate.llm.replies import Unread, in_order
from scopegate.prompts import load_prompt

PROMPT = load_prompt("extract_claims")
# With fewer, nothing is left to guess the missing ones from.
LEAST = 2
LINE_TOKENS, MARGIN_TOKENS = 80, 256


async def extract_claims(asker: Asker, document: str, count: int, seed: int) -> list[str]:
    """The claims that matter most, at most count and at least two, in their order. Raises LlmFailed."""

    def read(text: str) -> list[str]:
        claims = in_order(text)[:count]
        if len(claims) < count:
            why = f"it has {len(claims)} claims on numbered lines where {count} are needed"
            raise Unread(why, claims if len(claims) >= LEAST else None)
        return claims

    turns = PROMPT.render(document=document, count=count)
    ask = Ask(turns, MARGIN_TOKENS + LINE_TOKENS * count, seed=seed_of(seed, PROMPT.id))
    return await asker.read(ask, read)
