"""Generation as a job: an item is a document, which goes its own way through the algorithm."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from scopegate.domain import ConfusionType, Invalid, JobKind
from scopegate.generation import claims, guesses, judging, questions, removal
from scopegate.generation.algorithm import Algorithm, Asked, Tally
from scopegate.generation.documents import shortened, too_short
from scopegate.generation.options import Options
from scopegate.inference.embedder import Embedder
from scopegate.inference.likeness import originals
from scopegate.jobs.summary import summed
from scopegate.jobs.work import Done, Item
from scopegate.knowledge import Knowledge
from scopegate.llm.asker import Asker, seed_of

_WRITTEN_BY = (claims.PROMPT, guesses.PROMPT, removal.PROMPT, questions.OUT_OF_SCOPE, judging.FILTER, judging.KIND)
_PROMPTS = {
    False: [prompt.id for prompt in _WRITTEN_BY],
    True: [questions.IN_SCOPE.id, judging.FILTER.id],
}


class Generate:
    """See Work. generator, judge: the LLMs that write and that judge."""

    kind = JobKind.GENERATE

    def __init__(self, generator: Asker, judge: Asker, embedder: Embedder, knowledge: Knowledge) -> None:
        self._generator = generator
        self._judge = judge
        self._embedder = embedder
        self._knowledge = knowledge

    async def items(self, spec: Mapping[str, Any]) -> Sequence[Item]:
        """The documents, cut to what is used of them; those that are too short without their text, and saying so.

        Raises Invalid where there is none, UnknownScope.
        """
        documents = spec.get("documents")
        if documents is None:
            stored = await self._knowledge.documents(spec["scope"])
            documents = [
                {"id": each.id, "title": each.title, "text": each.text, "source": each.source} for each in stored
            ]
        if not documents:
            raise Invalid("there are no documents to make questions of")
        return await asyncio.to_thread(lambda: [_prepared(document) for document in documents])

    async def do(self, spec: Mapping[str, Any], item: Item, stage: Callable[[str], None]) -> Done:
        """See Work. Raises LlmAway where a server stays away, Unavailable once the embedder has stopped."""
        tally = Tally(item.key, Counter(documents=1))
        if item.body["skipped"] is not None:
            tally.counts["skipped.too_short"] += 1
            tally.note(f"skipped: {item.body['skipped']}")
            return Done((), dict(tally.counts), tuple(tally.notes))
        options = Options.of(spec)
        text = "\n\n".join(filter(None, (item.body["title"], item.body["text"])))
        seed = seed_of(options.seed, item.key)
        algorithm = Algorithm(text, options, seed, self._generator, self._judge, tally, stage)
        asked = await algorithm.questions()
        first = await originals(self._embedder, [each.question for each in asked])
        kept = [each for row, each in enumerate(asked) if first[row] == row]
        confusions = await algorithm.confusions([each.question for each in kept if each.claim is not None])
        rows = self._rows(item, options, kept, confusions)
        tally.counts["dropped.duplicate"] += len(asked) - len(kept)
        tally.counts["questions.out_of_scope"] += sum(not row["in_scope"] for row in rows)
        tally.counts["questions.in_scope"] += sum(row["in_scope"] for row in rows)
        if not rows:
            tally.counts["without_questions"] += 1
        return Done(tuple(rows), dict(tally.counts), tuple(tally.notes))

    async def finish(self, spec: Mapping[str, Any], done: Sequence[Done]) -> Mapping[str, Any]:
        """What was counted, and what there is to say of single documents."""
        return summed(done)

    def _rows(
        self, item: Item, options: Options, kept: Sequence[Asked], confusions: Mapping[str, ConfusionType]
    ) -> list[Mapping[str, Any]]:
        """Rows of the result. Ids as in the published data set: the document's, 1 where out of scope or 0, a count."""
        numbers: Counter[bool] = Counter()
        rows: list[Mapping[str, Any]] = []
        for each in kept:
            in_scope = each.claim is None
            numbers[in_scope] += 1
            confusion = confusions.get(each.question)
            rows.append(
                {
                    "id": f"{item.key}_{0 if in_scope else 1}_{numbers[in_scope]}",
                    "document_id": item.key,
                    "topic": item.body["topic"],
                    "question": each.question,
                    "in_scope": in_scope,
                    "claim": each.claim,
                    "confusion": None if confusion is None else confusion.value,
                    "votes": {"yes": each.votes.yes, "no": each.votes.no, "unread": each.votes.unread},
                    "generator": self._generator.model,
                    "judge": self._judge.model,
                    "prompts": _PROMPTS[in_scope],
                    "seed": options.seed,
                    "created_at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                }
            )
        return rows


def _prepared(document: Mapping[str, Any]) -> Item:
    text = shortened(document["text"])
    skipped = too_short(text)
    body = {
        "id": document["id"],
        "title": document.get("title"),
        "topic": document.get("topic"),
        "source": document.get("source"),
        "text": "" if skipped else text,
        "skipped": skipped,
    }
    return Item(document["id"], body)
