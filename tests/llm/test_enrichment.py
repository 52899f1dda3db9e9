"""The three agents against an LLM that says what it is told to, and what enters a scope of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import pytest

from scopegate.domain import Invalid, NewFact, Origin, Provenance, UnknownScope
from scopegate.enrichment.proposal import accept, chosen, distinct
from scopegate.enrichment.work import Enrich
from scopegate.inference.embedder import Embedder
from scopegate.jobs.work import Done
from scopegate.knowledge import Knowledge
from scopegate.llm.asker import Asker
from scopegate.llm.client import Llm
from tests.llm.ake import KNOWN, Agents
from tests.llm.eloq import tagged
from tests.scripted import Asked, Said, ScriptedLlm

SPEC = {"scope": "default", "seed_questions": ["How high is Mont Blanc?", "Who wrote Emma?"], "count": 4, "seed": 3}


def numbered(text: str, *tags: str) -> list[str]:
    return [found for tag in tags for found in tagged(tag, text)]


@pytest.fixture
def server(server: ScriptedLlm) -> ScriptedLlm:
    server.script = Agents()
    return server


@pytest.fixture
def work(llm: Llm, embedder: Embedder, knowledge: Knowledge) -> Enrich:
    return Enrich(Asker(llm, asyncio.Semaphore(8), patience_s=0), embedder, knowledge)


async def run(work: Enrich, **spec: Any) -> tuple[list[Done], Mapping[str, Any]]:
    full = SPEC | spec
    done = [await work.do(full, item, lambda _: None) for item in await work.items(full)]
    return done, await work.finish(full, done)


def row(number: int, fact: str, confidence: float = 0.9) -> dict[str, Any]:
    return {
        "id": f"batch_1_{number}",
        "fact": fact,
        "confidence": confidence,
        "question": "Why?",
        "answer": "So.",
        "generator": "scripted-1",
    }


async def test_exactly_this_is_proposed(work: Enrich, knowledge: Knowledge) -> None:
    (done,), summary = await run(work)
    (item,) = await work.items(SPEC)
    common = {
        "generator": "scripted-1",
        "prompts": ["enrich_questions@1", "enrich_answer@1", "enrich_fact@1"],
        "seed": item.body["seed"],
    }
    assert [{name: value for name, value in row.items() if name != "created_at"} for row in done.rows] == [
        common
        | {
            "id": f"batch_1_{number}",
            "question": question,
            "answer": answer,
            "fact": fact,
            "confidence": {"90%": 0.9}.get(confidence, confidence),
        }
        for number, (question, answer, confidence, fact) in enumerate(KNOWN[:2], 1)
    ]
    assert summary == {
        "questions": {"made": 4, "missing": 0},
        "answers": {"unknown": 1, "below_min_confidence": 1},
        "facts": {"made": 2, "missing": 0},
        "distinct": 2,
        "notes": [],
        "notes_left_out": 0,
    }
    assert (await knowledge.scope("default")).facts == 0


async def test_each_agent_sees_what_the_one_before_it_said(server: ScriptedLlm, work: Enrich) -> None:
    await run(work)
    asking, answering, stating = server.asked
    assert sorted(tagged("question", asking.user)) == sorted(SPEC["seed_questions"])  # type: ignore[call-overload]
    assert tagged("question", answering.user) == [question for question, *_ in KNOWN]
    assert numbered(stating.user, "question", "answer") == [
        *(question for question, *_ in KNOWN[:2]),
        *(answer for _, answer, *_ in KNOWN[:2]),
    ]
    # A confidence is kept here, and not given to be copied.
    assert "0.95" not in stating.user


async def test_the_floor_is_the_callers(work: Enrich) -> None:
    (done,), _ = await run(work, min_confidence=0.4)
    assert [row["confidence"] for row in done.rows] == [0.95, 0.9, 0.4]
    (done,), summary = await run(work, min_confidence=1.0)
    assert done.rows == ()
    assert summary["answers"] == {"unknown": 1, "below_min_confidence": 3}


async def test_many_are_asked_for_in_batches_with_seeds_of_their_own(work: Enrich) -> None:
    seeds = [f"What is number {number}?" for number in range(50)]
    items = await work.items(SPEC | {"count": 25, "seed_questions": seeds})
    assert [(item.key, item.body["count"]) for item in items] == [("batch_1", 10), ("batch_2", 10), ("batch_3", 5)]
    assert len({tuple(item.body["seeds"]) for item in items}) == 3
    assert {len(item.body["seeds"]) for item in items} == {20}
    assert items == await work.items(SPEC | {"count": 25, "seed_questions": seeds})


async def test_a_scope_that_is_not_there_cannot_be_enriched(work: Enrich) -> None:
    with pytest.raises(UnknownScope):
        await work.items(SPEC | {"scope": "nowhere"})


async def test_seeds_and_repetitions_are_no_new_questions(server: ScriptedLlm, work: Enrich) -> None:
    agents = Agents()

    def script(asked: Asked) -> Said | str:
        said = agents(asked)
        return (
            f"{said}\n5. how high is Mont Blanc\n6. Who wrote Emma?\n7. HOW long is the Rhine?"
            if "Write" in asked.user
            else said
        )

    server.script = script
    _, summary = await run(work, count=7)
    assert summary["questions"] == {"made": 4, "missing": 3}
    assert "it has 4 new questions on numbered lines where 7 are needed" in server.asked[1].user


@pytest.mark.parametrize("confidence", [1.5, -0.1, "high", None, True, [0.9]])
async def test_a_confidence_that_is_none_is_asked_for_again_and_then_left_out(
    server: ScriptedLlm, work: Enrich, confidence: Any
) -> None:
    question, answer, _, fact = KNOWN[0]
    server.script = Agents([(question, answer, confidence, fact), KNOWN[1]])
    (done,), summary = await run(work, count=2)
    assert [row["fact"] for row in done.rows] == [KNOWN[1][3]]
    assert summary["answers"]["unknown"] == 1
    assert "under 1 there is no answer with a confidence from 0 to 1" in server.asked[2].user


async def test_a_question_is_no_fact(server: ScriptedLlm, work: Enrich) -> None:
    server.script = Agents([(*KNOWN[0][:3], "How long is the Rhine?"), KNOWN[1]])
    (done,), summary = await run(work, count=2)
    assert [row["id"] for row in done.rows] == ["batch_1_2"]
    assert summary["facts"] == {"made": 1, "missing": 1}


@pytest.mark.parametrize("garbage", ["", "lorem ipsum", "[[[[", "1. Why?\n2. How?\n3. Who?\n4. When?"])
async def test_garbage_is_counted_and_crashes_nothing(server: ScriptedLlm, work: Enrich, garbage: str) -> None:
    server.script = lambda _: garbage
    (done,), summary = await run(work)
    assert done.rows == ()
    assert sum(summary["failed_steps"].values()) == 1
    assert re.match(r"batch_1: \w+: the LLM's reply cannot be used: ", summary["notes"][0])


# What enters the scope


async def test_without_review_the_facts_enter_as_the_job_ends_and_only_once(work: Enrich, knowledge: Knowledge) -> None:
    done, summary = await run(work, review=False)
    assert summary["accepted"] == {"accepted": 2, "merged": 0, "added": 2, "duplicates": 0, "revision": 1}
    again = await work.finish(SPEC | {"review": False}, done)
    assert again["accepted"] == {"accepted": 2, "merged": 0, "added": 0, "duplicates": 2, "revision": 1}
    fact, _ = (await knowledge.facts("default", 10, None, None)).items
    assert fact.text == "The Rhine is 1,233 kilometres long."
    assert fact.confidence == 0.95
    assert fact.provenances == (Provenance(Origin.ENRICHED, "scripted-1", None, 0.95),)
    assert fact.metadata == {"question": KNOWN[0][0], "answer": KNOWN[0][1]}


async def test_duplicates_are_merged_and_the_most_confident_stays(embedder: Embedder, knowledge: Knowledge) -> None:
    rows = [
        row(1, "The Rhine is 1,233 kilometres long.", 0.8),
        row(2, "The Rhine has a length of 1,233 kilometres.", 0.95),
        row(3, "The Rhine is 1,320 kilometres long.", 0.9),
        row(4, "The Rhine is not 1,233 kilometres long.", 0.7),
        row(5, "Emma was written by Jane Austen.", 0.9),
    ]
    taken_for = {id_: row["id"] for id_, row in (await distinct(embedder, rows)).items()}
    assert taken_for == {row["id"]: row["id"] for row in rows} | {"batch_1_1": "batch_1_2"}
    said = await accept(knowledge, embedder, "new-scope", rows)
    assert (said.accepted, said.merged, said.added) == (4, 1, 4)


async def test_duplicates_are_merged_where_they_are_accepted_one_by_one(
    embedder: Embedder, knowledge: Knowledge
) -> None:
    rows = [
        row(1, "The Rhine is 1,233 kilometres long.", 0.8),
        row(2, "The Rhine has a length of 1,233 kilometres.", 0.95),
    ]
    said = [await accept(knowledge, embedder, "default", rows, [each["id"]]) for each in rows]
    assert [(one.accepted, one.added, one.duplicates) for one in said] == [(1, 1, 0), (1, 0, 1)]
    (fact,) = (await knowledge.facts("default", 10, None, None)).items
    assert fact.text == rows[1]["fact"]


async def test_what_a_person_said_stays_as_sure_as_it_was(embedder: Embedder, knowledge: Knowledge) -> None:
    await knowledge.add(
        "default", [NewFact("Emma was written by Jane Austen.", (Provenance(Origin.MANUAL, None, None, 1.0),))]
    )
    said = await accept(knowledge, embedder, "default", [row(1, "Emma was written by Jane Austen.", 0.8)])
    assert (said.added, said.duplicates) == (0, 1)
    (fact,) = (await knowledge.facts("default", 10, None, None)).items
    assert fact.confidence == 1.0
    assert [provenance.origin for provenance in fact.provenances] == [Origin.MANUAL, Origin.ENRICHED]


def test_a_part_is_chosen_by_ids() -> None:
    rows = [row(number, f"Fact {number}.") for number in (1, 2, 3)]
    assert chosen(rows, None) == rows
    assert chosen(rows, ["batch_1_3", "batch_1_1"]) == [rows[0], rows[2]]
    assert chosen(rows, []) == []
    with pytest.raises(Invalid, match="'batch_9_9'"):
        chosen(rows, ["batch_1_1", "batch_9_9"])
