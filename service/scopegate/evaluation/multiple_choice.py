"""Questions with choices: how many are answered, how well, how good refusing was (Learn to Refuse, tables 1 to 4)."""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scopegate.answering.shapes import Json, Unreadable, Written
from scopegate.domain import Check, Conflict, Evidence, GateName, Invalid, NewFact, Origin, Provenance, Unavailable
from scopegate.evaluation.asking import chunks, judged, refused
from scopegate.evaluation.datasets import Choice, choices, statement
from scopegate.evaluation.shares import share
from scopegate.gate.gatekeeper import Gatekeeper
from scopegate.inference.embedder import Embedder
from scopegate.jobs.work import Done, Item
from scopegate.knowledge import Knowledge
from scopegate.knowledge.knowledge import DEFAULT_SCOPE
from scopegate.llm.asker import Asker, seed_of
from scopegate.llm.asks import Ask, LlmAway, LlmFailed
from scopegate.llm.replies import Unread, spoken
from scopegate.prompts import load_prompt
from scopegate.settings import Settings

# What can be left out (table 3).
PARTS = ("hard", "probe", "soft", "step_by_step")
_CHUNK = 8
_TOKENS = 1_024
_NO_LLM = "this job needs an LLM to choose, and none is set (SCOPEGATE_LLM_URL)"
_READY_S = 60.0
_ADD = 1_000
_NUMBERS = re.compile(r"\d{1,3}")


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Which candidates were chosen, and whether the LLM would rather have refused."""

    candidates: tuple[int, ...]
    declined: bool = False


class MultipleChoice:
    """A task on TruthfulQA, CommonsenseQA or MedQA rows, or rows of question, candidates and right.

    options: several: MC2 instead of MC1. scope: whose knowledge is asked. gold_shares: instead, knowledge is that share
    of the questions' right answers, drawn with the seed, larger shares holding the smaller; each is a run of its own.
    without: parts left out, of PARTS. alpha, probe_threshold, k: instead of the policy's. llm: whether the LLM chooses,
    as it does where there is one; else the candidate closest to the evidence is chosen. seed.
    Accuracy of MC1 is of questions; of MC2, of candidates, each right if it is chosen as it should be.
    """

    def __init__(
        self,
        gatekeeper: Gatekeeper,
        knowledge: Knowledge,
        embedder: Embedder,
        settings: Settings,
        answerer: Asker | None,
    ) -> None:
        self._gatekeeper = gatekeeper
        self._knowledge = knowledge
        self._embedder = embedder
        self._settings = settings
        self._answerer = answerer

    async def items(self, spec: Mapping[str, Any]) -> Sequence[Item]:
        """See Work. A share of gold knowledge is an item. Raises Invalid where rows or options make no sense,
        UnknownScope, Conflict where an LLM is wanted and none is set."""
        options = spec.get("options", {})
        found = await asyncio.to_thread(_choices, spec)
        if unknown := set(options.get("without", ())) - set(PARTS):
            raise Invalid(f"there is no part {unknown.pop()!r} to leave out; there are {', '.join(PARTS)}")
        if self._llm(options) and self._answerer is None:
            raise Conflict(_NO_LLM)
        if "gold_shares" in options:
            shares = dict.fromkeys(map(float, options["gold_shares"]))
            return [Item(repr(each), {"share": each}) for each in shares]
        self._knowledge.scope_of(options.get("scope", DEFAULT_SCOPE))
        return chunks(len(found), _CHUNK)

    async def do(self, spec: Mapping[str, Any], item: Item, stage: Callable[[str], None]) -> Done:
        """See Work. A row for each question."""
        options = spec.get("options", {})
        if "share" not in item.body:
            stage("choosing")
            scope = options.get("scope", DEFAULT_SCOPE)
            # Read here and not all at once: a spec may hold many thousand rows.
            mine = [_choice(spec, number) for number in item.body["numbers"]]
            rows = [await self._row(each, self._gatekeeper, scope, options, None) for each in mine]
        else:
            stage("storing knowledge")
            found = await asyncio.to_thread(_choices, spec)
            order = list(range(len(found)))
            random.Random(options.get("seed", 0)).shuffle(order)  # noqa: S311 - an order, no secret
            known = set(order[: round(item.body["share"] * len(found))])
            async with self._scratch(sorted({found[at].gold for at in known})) as gatekeeper:
                stage("choosing")
                rows = [
                    await self._row(each, gatekeeper, DEFAULT_SCOPE, options, at in known)
                    for at, each in enumerate(found)
                ]
            rows = [{"share": item.body["share"], **row} for row in rows]
        return Done(tuple(rows), {"questions": len(rows), "failed.choice": sum(row["failed"] for row in rows)})

    async def finish(self, spec: Mapping[str, Any], done: Sequence[Done]) -> Mapping[str, Any]:
        """See Work. A run for each share, or one over the scope. failed: where the LLM did not choose, or a gate gave
        no judgement, which is neither an answer nor a refusal. success: of the questions refused, those that would have
        been answered wrongly (appendix C); what nothing was chosen for counts as wrong."""
        options = spec.get("options", {})
        rows = [row for each in done for row in each.rows]
        shares = list(dict.fromkeys(row.get("share") for row in rows))
        return {
            "task": "multiple_choice",
            "kind": "mc2" if options.get("several") else "mc1",
            "without": list(options.get("without", ())),
            "chosen_by": (self._answerer.model if self._answerer else None) if self._llm(options) else "nearest",
            "seed": options.get("seed", 0),
            "runs": [_run([row for row in rows if row.get("share") == each], each) for each in shares],
        }

    def _llm(self, options: Mapping[str, Any]) -> bool:
        return bool(options.get("llm", self._answerer is not None))

    @asynccontextmanager
    async def _scratch(self, facts: Sequence[str]) -> AsyncIterator[Gatekeeper]:
        """The gates over a scope that knows these sentences and nothing else, gone when the context ends."""
        with tempfile.TemporaryDirectory() as folder:
            settings = self._settings.model_copy(update={"data_dir": Path(folder), "database_url": None})
            settings.__dict__.pop("sql_url", None)  # it is computed once, from what was there before
            knowledge = Knowledge(settings, self._embedder)
            await knowledge.start()
            try:
                await knowledge.ready(_READY_S)
                provenance = (Provenance(Origin.MANUAL, "gold", None, 1.0),)
                stored = 0
                for start in range(0, len(facts), _ADD):
                    part = [NewFact(text, provenance) for text in facts[start : start + _ADD]]
                    stored += (await knowledge.add(DEFAULT_SCOPE, part)).added
                if len(await knowledge.view(DEFAULT_SCOPE)) != stored:
                    raise Unavailable("the gold knowledge is stored, but cannot be seen")
                yield self._gatekeeper.over(knowledge)
            finally:
                await knowledge.stop()

    async def _row(
        self,
        choice: Choice,
        gatekeeper: Gatekeeper,
        scope: str,
        options: Mapping[str, Any],
        known: bool | None,
    ) -> dict[str, Any]:
        without = set(options.get("without", ()))
        # The LLM's own word comes with its choice, as in the paper, so no soft gate is asked beforehand.
        gates = [gate for gate in gatekeeper.available if gate is not GateName.SOFT and gate not in without]
        overrides: dict[str, Any] = {
            name: options[name] for name in ("alpha", "probe_threshold", "k") if options.get(name) is not None
        }
        verdict = await judged(
            gatekeeper, Check(choice.question, scope, overrides={**overrides, "gates": gates or [GateName.HARD]})
        )
        undecided = bool(gates) and refused(verdict) is None
        refused_by = verdict.refused_by.value if gates and verdict.refused_by and not undecided else None
        chosen: _Chosen | None
        try:
            if self._llm(options):
                chosen = await self._asked(choice, verdict.evidence, options, "step_by_step" not in without)
            else:
                chosen = await self._nearest(choice, verdict.evidence, bool(options.get("several")))
        except LlmAway:
            raise
        except LlmFailed:
            chosen = None
        if refused_by is None and chosen is not None and chosen.declined and "soft" not in without:
            refused_by = "soft"
        mine, right = set(chosen.candidates if chosen else ()), set(choice.right)
        # MC1 chooses one, so of several right ones any will do.
        hits = len(choice.candidates) - len(right ^ mine) if options.get("several") else int(bool(mine & right))
        return {
            "id": choice.id,
            "question": choice.question,
            "answered": refused_by is None and chosen is not None and not undecided,
            "failed": chosen is None or undecided,
            "refused_by": refused_by,
            "chosen": None if chosen is None else list(chosen.candidates),
            "right": list(choice.right),
            "hits": hits,
            "of": len(choice.candidates) if options.get("several") else 1,
            "known": known,
            "found": None if known is None else bool(verdict.evidence) and verdict.evidence[0].text == choice.gold,
        }

    async def _nearest(self, choice: Choice, evidence: Sequence[Evidence], several: bool) -> _Chosen:
        """Without an LLM: the candidate whose meaning is closest to a piece of evidence, by S/C; to the question, where
        there is none. Of several, those on the near side of the middle between the closest and the farthest."""
        known = [fact.text for fact in evidence] or [choice.question]
        confidences = np.array([fact.confidence for fact in evidence] or [1.0])
        statements = [statement(choice.question, candidate) for candidate in choice.candidates]
        vectors = await self._embedder.embed([*statements, *known], bulk=True)
        mine, theirs = vectors[: len(choice.candidates)], vectors[len(choice.candidates) :]
        apart = ((2 - 2 * mine @ theirs.T) / confidences).min(axis=1)
        if not several:
            return _Chosen((int(apart.argmin()),))
        return _Chosen(tuple(np.flatnonzero(apart <= (apart.min() + apart.max()) / 2).tolist()))

    async def _asked(
        self, choice: Choice, evidence: Sequence[Evidence], options: Mapping[str, Any], step_by_step: bool
    ) -> _Chosen:
        """The LLM's choice, from the evidence; from what it knows, where there is none, or where it declines."""
        if self._answerer is None:
            raise Conflict(_NO_LLM)
        several, seed = bool(options.get("several")), options.get("seed", 0)
        prompt = load_prompt(f"multiple_choice_{2 if several else 1}")
        turns = prompt.render(question=choice.question, candidates=list(choice.candidates))
        count = len(choice.candidates)
        bare = Ask(turns, _TOKENS, seed=seed_of(seed, prompt.id, choice.id))

        def numbers(text: str) -> tuple[int, ...]:
            return _numbers(spoken(text), count, several)

        if not evidence:
            return _Chosen(await self._answerer.read(bare, numbers), declined=True)
        shape = Json("reasoning" if step_by_step else "basic")
        asked = shape.prompt.render(question=turns[-1].content, passages=[fact.text for fact in evidence])

        def written(text: str) -> tuple[Written, tuple[int, ...]]:
            try:
                read = shape.read(spoken(text), len(evidence), complete=True)
            except Unreadable as error:
                raise Unread(str(error)) from error
            return read, _numbers(read.answer, count, several) if read.can_answer else ()

        read, chosen = await self._answerer.read(
            Ask(asked, _TOKENS, seed=seed_of(seed, shape.prompt.id, choice.id)), written
        )
        if not read.can_answer:
            return _Chosen(await self._answerer.read(bare, numbers), declined=True)
        return _Chosen(chosen)


def _choices(spec: Mapping[str, Any], first: int = 1) -> list[Choice]:
    options = spec.get("options", {})
    return choices(spec["dataset"], several=bool(options.get("several")), seed=options.get("seed", 0), first=first)


def _choice(spec: Mapping[str, Any], number: int) -> Choice:
    """That of one row, counted from 0."""
    (choice,) = _choices({**spec, "dataset": [spec["dataset"][number]]}, number + 1)
    return choice


def _numbers(text: str, count: int, several: bool) -> tuple[int, ...]:
    """The candidates that a reply names, counted from 0. Raises Unread where it names none, others, or too many."""
    named = sorted({int(number) - 1 for number in _NUMBERS.findall(text)})
    if not named or not all(0 <= each < count for each in named) or (len(named) > 1 and not several):
        form = "a list of numbers" if several else "one number"
        raise Unread(f"it must be {form} from 1 to {count}, without any words")
    return tuple(named)


def _run(rows: Sequence[Mapping[str, Any]], gold_share: float | None) -> dict[str, Any]:
    answered = [row for row in rows if row["answered"]]
    run = {
        "gold_share": gold_share,
        "questions": len(rows),
        "answered": len(answered),
        "accuracy": _accuracy(answered),
        "accuracy_unrefused": _accuracy(rows),
        "refused": {part: sum(row["refused_by"] == part for row in rows) for part in PARTS[:3]},
        "failed": sum(row["failed"] for row in rows),
        "success": share([row["hits"] < row["of"] for row in rows if row["refused_by"] is not None]),
    }
    if gold_share is None:
        return run
    known, unknown = [row for row in rows if row["known"]], [row for row in rows if not row["known"]]
    return run | {
        "known": len(known),
        "known_answered": share([row["answered"] for row in known]),
        "unknown_refused": share([row["refused_by"] is not None for row in unknown]),
        "known_found": share([row["found"] for row in known]),
        "answered_found": share([row["found"] for row in answered]),
    }


def _accuracy(rows: Sequence[Mapping[str, Any]]) -> float | None:
    of = sum(row["of"] for row in rows)
    return sum(row["hits"] for row in rows if row["chosen"] is not None) / of if of else None
