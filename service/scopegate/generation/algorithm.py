"""The way of one document through the steps (ELOQ, Algorithm 1), and of the questions that it does answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from scopegate.domain import ConfusionType
from scopegate.generation.claims import extract_claims
from scopegate.generation.guesses import guess_claims
from scopegate.generation.judging import confusing, confusion_type
from scopegate.generation.options import Options
from scopegate.generation.questions import in_scope_questions, out_of_scope_questions
from scopegate.generation.removal import unsupported
from scopegate.llm.asker import Asker, Votes, side_by_side
from scopegate.llm.asks import LlmAway, LlmFailed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that the votes have kept. claim: the guess that it is on, None where it is in scope."""

    question: str
    claim: str | None
    votes: Votes


@dataclass(slots=True)
class Tally:
    """What became of a document, counted; why, in sentences that begin with its id."""

    document_id: str
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def note(self, why: str) -> None:
        """Adds a sentence."""
        self.notes.append(f"{self.document_id}: {why}")

    def failed(self, step: str, error: LlmFailed) -> None:
        """Counts a step for which the LLM gave nothing of use."""
        self.counts[f"failed_steps.{step}"] += 1
        self.note(f"{step.replace('_', ' ')}: {error}")

    async def tried(self, step: str, asking: Awaitable[T]) -> T | None:
        """What is asked for; None, and a failure counted, where the LLM gives nothing of use. Raises LlmAway."""
        try:
            return await asking
        except LlmAway:
            raise
        except LlmFailed as error:
            self.failed(step, error)
            return None


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A document, and who does what to it. A step that fails costs what hangs on it, and is counted.

    generator, judge: the LLMs that write and that judge. All of it raises LlmAway where a server stays away.
    """

    document: str
    options: Options
    seed: int
    generator: Asker
    judge: Asker
    tally: Tally
    stage: Callable[[str], None]

    async def questions(self) -> list[Asked]:
        """The questions that the votes keep, those out of scope before those in scope."""
        beyond, within = await side_by_side([self._out_of_scope(), self._in_scope()])
        return beyond + within

    async def confusions(self, questions: Sequence[str]) -> Mapping[str, ConfusionType]:
        """What is wrong with each question, where the judge sees something."""
        if not questions:
            return {}
        self.stage("confusion types")
        kinds = await side_by_side([self._confusion(question) for question in questions])
        return {question: kind for question, kind in zip(questions, kinds, strict=True) if kind is not None}

    async def _out_of_scope(self) -> list[Asked]:
        options, tally = self.options, self.tally
        self.stage("claims")
        claims = await tally.tried(
            "claims", extract_claims(self.generator, self.document, options.facts_per_document, self.seed)
        )
        if claims is None:
            return []
        tally.counts["claims.extracted"] += len(claims)
        tally.counts["claims.missing"] += options.facts_per_document - len(claims)
        self.stage("guesses")
        places = await guess_claims(
            self.generator,
            claims,
            rounds=options.rounds,
            partitions=options.partitions,
            seed=self.seed,
            failed=lambda error: tally.failed("guesses", error),
        )
        guesses = [guess for guess in places if guess is not None]
        tally.counts["guesses.made"] += len(guesses)
        tally.counts["guesses.missing"] += len(places) - len(guesses)
        self.stage("removal")
        invented = await tally.tried("removal", unsupported(self.generator, self.document, claims, guesses, self.seed))
        if not invented:
            return []
        tally.counts["guesses.unsupported"] += len(invented)
        self.stage("questions")
        by_guess = await tally.tried(
            "questions", out_of_scope_questions(self.generator, self.document, invented, self.seed)
        )
        if by_guess is None:
            return []
        tally.counts["dropped.no_question"] += len(invented) - len(by_guess)
        self.stage("votes")
        return await self._kept([(question, guess) for guess, question in by_guess.items()])

    async def _in_scope(self) -> list[Asked]:
        if not self.options.in_scope_questions:
            return []
        questions = await self.tally.tried(
            "in_scope_questions",
            in_scope_questions(self.generator, self.document, self.options.in_scope_questions, self.seed),
        )
        return await self._kept([(question, None) for question in questions or ()])

    async def _kept(self, asked: Sequence[tuple[str, str | None]]) -> list[Asked]:
        """Those of which most votes say what they are to be: beyond the document if there is a guess, else within."""
        cast = await side_by_side([self._votes(question) for question, _ in asked])
        kept = []
        for (question, guess), votes in zip(asked, cast, strict=True):
            if votes is None:
                continue
            if votes.verdict is None:
                self.tally.counts["dropped.undecided"] += 1
            elif votes.verdict != (guess is not None):
                self.tally.counts["dropped.confusing" if guess is None else "dropped.answerable"] += 1
            else:
                kept.append(Asked(question, guess, votes))
        return kept

    async def _votes(self, question: str) -> Votes | None:
        asking = confusing(self.judge, self.document, question, self.options.votes, self.seed)
        return await self.tally.tried("votes", asking)

    async def _confusion(self, question: str) -> ConfusionType | None:
        asking = confusion_type(self.judge, self.document, question, self.seed)
        said = await self.tally.tried("confusion_types", asking)
        if said is None:
            return None
        self.tally.counts[f"confusion.{said}"] += 1
        return None if said == "none" else ConfusionType(said)
