"""Detection and response by an LLM, scripted behind the real protocol: what it is asked, and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from scopegate.domain import Check, Conflict, Invalid, JobKind, Policy
from scopegate.evaluation.plots import draw
from scopegate.evaluation.tables import tables
from scopegate.evaluation.work import Evaluate
from scopegate.gate.gate import GateBroken, Judgement, ProbeGate
from scopegate.gate.gatekeeper import Judged
from scopegate.gate.retrieval import Case
from scopegate.llm.asker import Asker
from scopegate.llm.asks import LlmAway
from scopegate.llm.client import Llm
from scopegate.services import Services
from scopegate.settings import Settings
from tests.scripted import Asked, Said, ScriptedLlm, by_prompt, llm_at
from tests.unit.evaluating import evaluated

FERRY = "The ferry to Harwick leaves from pier 4 at noon. The crossing takes seven hours."
BREAD = "The dough for the rye bread rests overnight before it is baked for an hour."


def row(name: str, question: str, document: str, topic: str | None, in_scope: bool, **more: Any) -> dict[str, Any]:
    given = {"id": name, "question": question, "document": document, "topic": topic, "in_scope": in_scope}
    return given | {"document_id": f"d{len(document)}"} | more


ROWS = [
    row("a", "Which pier does the ferry to Harwick leave from?", FERRY, "sea", True),
    row("b", "Who is the captain of the ferry to Harwick?", FERRY, "sea", False),
    row("c", "Why did the baker stop selling rye bread?", BREAD, "food", False),
    row("d", "How long is the rye bread baked?", BREAD, "food", True),
]


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    services = Services(Settings(data_dir=tmp_path))
    async with services.running():
        await services.knowledge.ready(20)
        yield services


@asynccontextmanager
async def _work(services: Services, llm: Llm, patience_s: float = 60.0) -> AsyncIterator[Evaluate]:
    asker = Asker(llm, asyncio.Semaphore(8), patience_s)
    parts = (services.gatekeeper, services.knowledge, services.embedder, services.settings)
    yield Evaluate(*parts, answerer=asker, judge=asker)


@pytest.fixture
async def work(services: Services, llm: Llm) -> AsyncIterator[Evaluate]:
    async with _work(services, llm) as work:
        yield work


def votes(label: str, *cast: bool | None) -> Said:
    """Replies that end as they should, or, for None, do not."""
    words = {True: f"It is so.\n{label}: yes", False: f"It is not so.\n{label}: no", None: "I cannot say."}
    return Said(tuple(words[each] for each in cast))


def by_question(said: dict[str, Said | str]) -> Callable[[Asked], Said | str]:
    return lambda asked: next(reply for part, reply in said.items() if part in asked.user)


async def test_detection_counts_votes_and_says_how_good_they_are(work: Evaluate, server: ScriptedLlm) -> None:
    server.script = by_question(
        {
            "Which pier": votes("Confusing", False, False, True),
            "captain": votes("Confusing", True, True, False),
            "baker": votes("Confusing", False, True, False),
            "How long": votes("Confusing", False, False, False),
        }
    )
    spec = {"task": "detection", "dataset": ROWS, "options": {"by": ["llm"], "votes": 3}}
    rows, summary = await evaluated(work, spec)
    assert [each["out_of_scope"]["llm"] for each in rows] == [False, True, False, False]
    assert rows[0]["votes"] == [False, False, True]
    found = summary["judges"]["llm"]
    assert found["matrix"] == {"true_yes": 1, "false_yes": 0, "false_no": 1, "true_no": 2}
    assert (found["accuracy"], found["precision"], found["recall"], found["undecided"]) == (0.75, 1.0, 0.5, 0)
    assert found["by_topic"]["topics"] == {"food": 0.5, "sea": 1.0}
    assert (found["by_topic"]["average"], found["by_topic"]["deviation"]) == (0.75, 0.25)
    # One request a question, of as many votes, with the document and the question and no label.
    assert len(server.asked) == 4
    assert all(asked.body["n"] == 3 and "temperature" in asked.body for asked in server.asked)
    assert FERRY in server.asked[0].user
    assert "in_scope" not in server.asked[0].user


async def test_the_same_question_is_asked_with_the_same_seed(work: Evaluate, server: ScriptedLlm) -> None:
    server.script = lambda _: votes("Confusing", True, True, True)
    spec = {"task": "detection", "dataset": ROWS, "options": {"by": ["llm"]}}
    await evaluated(work, spec)
    await evaluated(work, spec)
    seeds = [asked.body["seed"] for asked in server.asked]
    assert seeds[:4] == seeds[4:]
    assert len(set(seeds)) == 4


async def test_votes_that_cannot_be_read_leave_a_question_undecided(work: Evaluate, server: ScriptedLlm) -> None:
    server.script = lambda asked: (
        votes("Confusing", None, None, None) if "captain" in str(asked.body) else votes("Confusing", True, True, None)
    )
    spec = {"task": "detection", "dataset": ROWS, "options": {"by": ["llm"], "votes": 3}}
    rows, summary = await evaluated(work, spec)
    assert [each["out_of_scope"]["llm"] for each in rows] == [True, None, True, True]
    assert summary["judges"]["llm"]["undecided"] == 1
    assert summary["judges"]["llm"]["by_topic"]["questions"] == 3


async def test_a_server_that_stays_away_is_the_runners_to_try_again(services: Services, server: ScriptedLlm) -> None:
    async with llm_at(server) as llm, _work(services, llm, patience_s=0) as work:
        server.script = lambda _: Said(status=503)
        spec = {"task": "detection", "dataset": ROWS, "options": {"by": ["llm"]}}
        (item, *_) = await work.items(spec)
        with pytest.raises(LlmAway):
            await work.do(spec, item, lambda _: None)


async def test_where_a_gate_broke_nothing_is_detected(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = ProbeGate.judge

    async def sometimes(self: ProbeGate, case: Case, policy: Policy) -> Judgement:
        if "captain" in case.question:
            raise GateBroken("it is gone")
        return await judge(self, case, policy)

    monkeypatch.setattr(ProbeGate, "judge", sometimes)
    endless = row("e", "Which pier is it?", "It is so. " * 20_000, None, True)
    spec = {"task": "detection", "dataset": [*ROWS, endless]}
    rows, summary = await evaluated(services.works[JobKind.EVALUATE], spec)
    assert [each["out_of_scope"]["gates"] for each in rows] == [False, None, True, False, None]
    assert summary["judges"]["gates"]["undecided"] == 2
    assert summary["judges"]["gates"]["recall"] == 1.0


async def test_long_documents_are_judged_in_pieces_of_whole_words(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, checks = services.gatekeeper.judge, []

    async def seen(check: Check, end: float) -> Judged:
        checks.append(check)
        return await judge(check, end)

    monkeypatch.setattr(services.gatekeeper, "judge", seen)
    document = "The ferry number 12345 leaves at noon. " * 1_100 + "x" * 30_000
    asked = row("f", "When does ferry 12345 leave?", document, None, True)
    await evaluated(services.works[JobKind.EVALUATE], {"task": "detection", "dataset": [asked]})
    pieces = [passage.text for passage in checks[0].passages or ()]
    assert "".join(pieces) == document
    assert max(map(len, pieces)) == 20_000
    assert [piece[-1] for piece in pieces] == [" ", " ", " ", "x", "x"]


async def test_rows_without_ids_are_numbered_from_one(work: Evaluate, server: ScriptedLlm) -> None:
    server.script = lambda _: votes("Defused", True)
    rows = [{**each, "id": None, "in_scope": False, "response": "No."} for each in ROWS]
    for task, options in (("detection", {"by": ["gates"]}), ("response", {"votes": 1})):
        found, summary = await evaluated(work, {"task": task, "dataset": rows, "options": options})
        assert [each["id"] for each in found] == ["1", "2", "3", "4"]
        assert summary["questions"] == 4


async def test_without_an_llm_the_gates_detect(services: Services) -> None:
    rows, summary = await evaluated(services.works[JobKind.EVALUATE], {"task": "detection", "dataset": ROWS})
    assert [each["out_of_scope"].keys() for each in rows] == [{"gates"}] * 4
    assert not rows[0]["out_of_scope"]["gates"]
    assert summary["judges"].keys() == {"gates"}


@pytest.mark.parametrize(("task", "options"), [("detection", {"by": ["llm"]}), ("response", {})])
async def test_a_task_that_needs_an_llm_says_what_to_set(
    services: Services, task: str, options: dict[str, Any]
) -> None:
    with pytest.raises(Conflict, match="SCOPEGATE_LLM_URL"):
        await services.works[JobKind.EVALUATE].items({"task": task, "dataset": ROWS, "options": options})


async def test_responses_are_asked_for_in_three_ways_and_judged_by_votes(
    work: Evaluate, server: ScriptedLlm, tmp_path: Path
) -> None:
    def responds(asked: Asked) -> str:
        prompt = str(asked.body["messages"])
        if "step by step" in prompt:
            return "The question cannot be answered."
        return "The document does not say." if "Heron Island" in prompt else "Captain Miller."

    def judges(asked: Asked) -> Said:
        assert asked.body["n"] == 5
        defused = "cannot be answered" in asked.user or ("does not say" in asked.user and "captain" in asked.user)
        return votes("Defused", *([defused] * 3), *([not defused] * 2))

    server.script = by_prompt({"You judge responses": judges, "You answer questions about": responds})
    rows, summary = await evaluated(work, {"task": "response", "dataset": ROWS, "options": {"votes": 5}})
    assert {each["id"] for each in rows} == {"b", "c"}  # those in scope are not asked
    shares = {method: found["overall"] for method, found in summary["methods"].items()}
    assert shares == {"basic": 0.0, "two_shot": 0.5, "reasoning": 1.0}
    assert summary["methods"]["two_shot"]["topics"] == {"food": 0.0, "sea": 1.0}
    assert summary["judges"] == []
    assert [each.partition("@")[0] for each in summary["prompts"]] == [
        "response_basic",
        "response_two_shot",
        "response_reasoning",
        "defusion/given",
    ]
    assert len(server.asked) == 2 * 3 * 2
    assert [path.name for path in draw(summary, tmp_path)] == ["response.png"]
    assert len(tables(summary)) == 1


async def test_the_judge_is_measured_against_people(work: Evaluate, server: ScriptedLlm, tmp_path: Path) -> None:
    """Table 7: without examples it is wrong once; with them the first vote is wrong, and more votes are right."""
    rows = [
        row("b", "Who is the captain?", FERRY, None, False, response="Captain Miller.", defused=False),
        row("c", "Why did the baker stop?", BREAD, None, False, response="It does not say.", defused=True),
    ]

    def judges(asked: Asked) -> Said:
        truth = "does not say" in asked.user
        assert asked.body["n"] == 9
        if "Three responses" not in asked.system:
            return votes("Defused", True)
        return votes("Defused", not truth, *([truth] * 8))

    server.script = judges
    found, summary = await evaluated(work, {"task": "response", "dataset": rows, "options": {}})
    assert [each["method"] for each in found] == ["given", "given"]
    told = [(each["examples"], each["votes"], each["accuracy_of_all"]) for each in summary["judges"]]
    assert told == [("none", 1, 0.5), ("given", 1, 0.0), ("given", 3, 1.0), ("given", 9, 1.0)]
    assert len({asked.body["temperature"] for asked in server.asked}) == 1  # they differ in nothing but the examples
    assert [prompt.partition("@")[0] for prompt in summary["prompts"]] == ["defusion/none", "defusion/given"]
    assert [path.name for path in draw(summary, tmp_path)] == ["response.png", "judges.png"]
    assert len(tables(summary)) == 2


async def test_the_first_votes_are_the_first_also_where_some_cannot_be_read(
    work: Evaluate, server: ScriptedLlm
) -> None:
    rows = [row("c", "Why?", BREAD, None, False, response="It does not say.", defused=True)]

    def judges(asked: Asked) -> Said:
        if asked.body["n"] == 9:
            return votes("Defused", None, None, None, *[True] * 6)
        return votes("Defused", None, False, None)  # asked once more for the three

    server.script = judges
    (found,), summary = await evaluated(work, {"task": "response", "dataset": rows, "options": {}})
    assert found["votes"]["given"] == [None, False, None, *[True] * 6]
    told = [(each["votes"], each["undecided"], each["accuracy_of_all"]) for each in summary["judges"]]
    assert told == [(1, 1, 0.0), (1, 1, 0.0), (3, 1, 0.0), (9, 0, 1.0)]


async def test_a_label_counts_only_of_the_response_that_people_saw(work: Evaluate, server: ScriptedLlm) -> None:
    rows = [row("b", "Who is the captain?", FERRY, None, False, defused=False)]
    judges = by_question({"": votes("Defused", True)})
    server.script = by_prompt({"You judge responses": judges, "You answer questions about": lambda _: "No idea."})
    spec = {"task": "response", "dataset": rows, "options": {"methods": ["basic"]}}
    (found,), summary = await evaluated(work, spec)
    assert (found["people"], summary["judges"]) == (None, [])


async def test_a_response_that_fails_is_counted_and_costs_no_other(work: Evaluate, server: ScriptedLlm) -> None:
    def responds(asked: Asked) -> Said | str:
        return Said(status=400) if "captain" in asked.user else "It does not say."

    judges = by_question({"": votes("Defused", True)})
    server.script = by_prompt({"You judge responses": judges, "You answer questions about": responds})
    spec = {"task": "response", "dataset": ROWS, "options": {"methods": ["basic"], "votes": 1}}
    items = await work.items(spec)
    done = [await work.do(spec, item, lambda _: None) for item in items]
    assert [each.counts["failed.response"] for each in done] == [1, 0]
    assert (await work.finish(spec, done))["methods"]["basic"]["questions"] == 1


async def test_questions_that_are_all_in_scope_cannot_be_defused(work: Evaluate) -> None:
    with pytest.raises(Invalid, match="none of the questions is out of scope"):
        await work.items({"task": "response", "dataset": [ROWS[0]]})
