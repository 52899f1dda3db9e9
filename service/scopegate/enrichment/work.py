"""Enrichment as a job: an item is a batch of questions, which the three agents turn into proposed facts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from scopegate.domain import JobKind
from scopegate.enrichment.agents import ANSWERS, FACTS, QUESTIONS, Pair, answers, facts, new_questions
from scopegate.enrichment.proposal import accept, distinct
from scopegate.inference.embedder import Embedder
from scopegate.jobs.summary import summed
from scopegate.jobs.work import Done, Item
from scopegate.knowledge import Knowledge
from scopegate.llm.asker import Asker, seed_of
from scopegate.llm.asks import LlmAway, LlmFailed

BATCH = 10
# Seeds that one batch is shown; each batch is shown others, where there are more.
_SEEDS = 20
_PROMPTS = [QUESTIONS.id, ANSWERS.id, FACTS.id]


class Enrich:
    """See Work. Without review, the facts enter the scope as the job ends; else they are a proposal to be accepted."""

    kind = JobKind.ENRICH

    def __init__(self, asker: Asker, embedder: Embedder, knowledge: Knowledge) -> None:
        self._asker = asker
        self._embedder = embedder
        self._knowledge = knowledge

    async def items(self, spec: Mapping[str, Any]) -> Sequence[Item]:
        """Batches of questions to be thought of, with the seeds to each. Raises UnknownScope."""
        await self._knowledge.scope(spec["scope"])
        wanted, seeds = spec.get("count", 100), list(dict.fromkeys(spec["seed_questions"]))
        found = []
        for first in range(0, wanted, BATCH):
            seed = seed_of(spec.get("seed", 0), first)
            shown = random.Random(seed).sample(seeds, min(_SEEDS, len(seeds)))  # noqa: S311 - which seeds is no secret
            body = {"seeds": shown, "count": min(BATCH, wanted - first), "seed": seed}
            found.append(Item(f"batch_{first // BATCH + 1}", body))
        return found

    async def do(self, spec: Mapping[str, Any], item: Item, stage: Callable[[str], None]) -> Done:
        """See Work. Raises LlmAway where the server stays away."""
        counts: Counter[str] = Counter()
        notes: list[str] = []
        pairs: list[Pair] = []
        said: list[str | None] = []
        step = "questions"
        try:
            stage(step)
            questions = await new_questions(self._asker, item.body["seeds"], item.body["count"], item.body["seed"])
            counts["questions.made"] += len(questions)
            counts["questions.missing"] += item.body["count"] - len(questions)
            stage(step := "answers")
            known = [pair for pair in await answers(self._asker, questions, item.body["seed"]) if pair is not None]
            pairs = [pair for pair in known if pair.confidence >= spec.get("min_confidence", 0.7)]
            counts["answers.unknown"] += len(questions) - len(known)
            counts["answers.below_min_confidence"] += len(known) - len(pairs)
            stage(step := "facts")
            said = await facts(self._asker, pairs, item.body["seed"]) if pairs else []
            counts["facts.missing"] += said.count(None)
        except LlmAway:
            raise
        except LlmFailed as error:
            counts[f"failed_steps.{step}"] += 1
            notes.append(f"{item.key}: {step}: {error}")
        rows = tuple(
            self._row(item, number, pair, fact)
            for number, (pair, fact) in enumerate(zip(pairs, said, strict=False), 1)
            if fact is not None
        )
        counts["facts.made"] += len(rows)
        return Done(rows, dict(counts), tuple(notes))

    async def finish(self, spec: Mapping[str, Any], done: Sequence[Done]) -> Mapping[str, Any]:
        """The counts, how many distinct facts there are; without review, what became of them in the scope."""
        rows = [row for one in done for row in one.rows]
        taken = {row["id"] for row in (await distinct(self._embedder, rows)).values()}
        summary = summed(done) | {"distinct": len(taken)}
        if spec.get("review", True):
            return summary
        return summary | {"accepted": asdict(await accept(self._knowledge, self._embedder, spec["scope"], rows))}

    def _row(self, item: Item, number: int, pair: Pair, fact: str) -> Mapping[str, Any]:
        return {
            "id": f"{item.key}_{number}",
            "fact": fact,
            "confidence": pair.confidence,
            "question": pair.question,
            "answer": pair.answer,
            "generator": self._asker.model,
            "prompts": _PROMPTS,
            "seed": item.body["seed"],
            "created_at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
