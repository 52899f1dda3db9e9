"""The whole algorithm against an LLM that knows three places: what each step is sent, and what must come out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scopegate.domain import Document, Invalid
from scopegate.generation.documents import shortened, too_short, word_count
from scopegate.generation.guesses import partition
from scopegate.generation.work import Generate
from scopegate.inference.embedder import Embedder
from scopegate.jobs.work import Done, Item
from scopegate.knowledge import Knowledge
from scopegate.llm.asker import Asker
from scopegate.llm.client import Llm, LlmAway
from scopegate.settings import Settings
from tests.llm.eloq import PLACES, Place, World, first_turn, listed, tagged, task
from tests.scripted import Asked, Said, ScriptedLlm, llm_at

SPEC = {
    "documents": [place.document for place in PLACES],
    "facts_per_document": 6,
    "rounds": 2,
    "partitions": 3,
    "in_scope_questions": 2,
    "votes": 3,
    "seed": 7,
}
PLACE = PLACES[0]


@pytest.fixture
def server(server: ScriptedLlm) -> ScriptedLlm:
    server.script = World()
    return server


@pytest.fixture
def closed(settings: Settings, embedder: Embedder) -> Knowledge:
    """Knowledge that was never opened: what needs it fails."""
    return Knowledge(settings, embedder)


@pytest.fixture
def work(llm: Llm, embedder: Embedder, closed: Knowledge) -> Generate:
    asker = Asker(llm, asyncio.Semaphore(16), patience_s=0)
    return Generate(asker, asker, embedder, closed)


@pytest.fixture
def work_on_scopes(llm: Llm, embedder: Embedder, knowledge: Knowledge) -> Generate:
    asker = Asker(llm, asyncio.Semaphore(16), patience_s=0)
    return Generate(asker, asker, embedder, knowledge)


async def do(work: Generate, place: Place = PLACE, **options: Any) -> Done:
    (item,) = await work.items(SPEC | {"documents": [place.document]})
    return await work.do(SPEC | options, item, lambda _: None)


def of(server: ScriptedLlm, name: str) -> list[Asked]:
    return [asked for asked in server.asked if task(asked) == name]


def without_times(rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "created_at"} for row in rows]


async def test_exactly_this_data_set_comes_out(work: Generate) -> None:
    items = await work.items(SPEC)
    assert [item.key for item in items] == ["port_alder", "solvik_bay", "heron_quay"]
    done = await asyncio.gather(*(work.do(SPEC, item, lambda _: None) for item in items))
    for place, one in zip(PLACES, done, strict=True):
        assert without_times(one.rows) == place.rows(seed=7)
    summary = await work.finish(SPEC, done)
    assert summary == {
        "documents": 3,
        "claims": {"extracted": 18, "missing": 0},
        "guesses": {"made": 18, "missing": 0, "unsupported": 15},
        "dropped": {"no_question": 3, "answerable": 3, "confusing": 3, "duplicate": 3},
        "confusion": {"not_mentioned": 3, "false_premise": 3},
        "questions": {"in_scope": 3, "out_of_scope": 6},
        "notes": [],
        "notes_left_out": 0,
    }


async def test_the_steps_are_told_in_their_order(work: Generate) -> None:
    (item,) = await work.items(SPEC | {"documents": [PLACE.document]})
    stages: list[str] = []
    await work.do(SPEC, item, stages.append)
    assert stages == ["claims", "guesses", "removal", "questions", "votes", "confusion types"]


@pytest.mark.parametrize(
    ("count", "parts", "expected"),
    [
        (10, 3, [(3, 6, 9), (1, 4, 7, 10), (2, 5, 8)]),
        (6, 2, [(2, 4, 6), (1, 3, 5)]),
        (2, 3, [(1,), (2,)]),
    ],
)
def test_partitions_are_by_remainder(count: int, parts: int, expected: list[tuple[int, ...]]) -> None:
    assert partition(count, parts) == expected


async def test_each_round_masks_each_part_and_shows_what_was_guessed_before(
    server: ScriptedLlm, work: Generate
) -> None:
    await do(work)
    now = dict(enumerate(PLACE.claims, 1))
    expected = []
    for round_ in (1, 2):
        for masked in ((3, 6), (1, 4), (2, 5)):
            expected.append(["(missing)" if number in masked else now[number] for number in now])
            now |= {number: PLACE.guess(number, round_) for number in masked}
    assert [tagged("claim", first_turn(asked)) for asked in of(server, "recover")] == expected


async def test_who_guesses_never_sees_the_document(server: ScriptedLlm, work: Generate) -> None:
    server.script = lambda asked: "I cannot do that." if task(asked) == "recover" else World()(asked)
    await do(work)
    recovering = of(server, "recover")
    assert len(recovering) == 12  # six, each asked for once more
    for asked in recovering:
        whole = "\n".join(turn["content"] for turn in asked.body["messages"])
        assert "The wind comes from the west" not in whole
        assert "A day in Port Alder" not in whole
        assert "<document>" not in whole


async def test_every_other_step_sees_title_and_text(server: ScriptedLlm, work: Generate) -> None:
    await do(work)
    for name in ("claims", "remove", "questions", "in_scope", "filter", "kind"):
        for asked in of(server, name):
            (document,) = tagged("document", first_turn(asked))
            assert document.strip() == f"A day in Port Alder\n\n{PLACE.text}".strip()


async def test_what_is_true_already_is_not_asked_about(server: ScriptedLlm, work: Generate) -> None:
    await do(work)
    (removal,) = of(server, "remove")
    before, after = first_turn(removal).split("<invented_claims>")
    assert tagged("claim", before) == PLACE.claims
    assert tagged("claim", after) == [PLACE.guess(number, 2) for number in range(1, 7)]
    (asked,) = of(server, "questions")
    assert tagged("claim", first_turn(asked)) == [PLACE.guess(number, 2) for number in (1, 2, 3, 5, 6)]


async def test_votes_are_one_request_each(server: ScriptedLlm, work: Generate) -> None:
    await do(work)
    filtering = of(server, "filter")
    assert [asked.body["n"] for asked in filtering] == [3] * 6
    assert sorted(tagged("question", first_turn(asked))[0] for asked in filtering) == sorted(PLACE.votes)
    # The wording of another is dropped before anybody is asked about its kind.
    assert len(of(server, "kind")) == 2


async def test_the_same_job_makes_the_same_random_choices(server: ScriptedLlm, work: Generate) -> None:
    seeds = []
    for seed in (7, 7, 8):
        server.begin_again(World())
        await do(work, seed=seed)
        seeds.append(sorted(asked.body["seed"] for asked in server.asked))
    assert seeds[0] == seeds[1]
    assert not set(seeds[0]) & set(seeds[2])
    assert len(set(seeds[0])) == len(seeds[0])


async def test_votes_of_a_server_that_says_one_thing_at_a_time_have_seeds_of_their_own(
    server: ScriptedLlm, embedder: Embedder, closed: Knowledge
) -> None:
    server.several = False
    async with llm_at(server, queue=64) as llm:
        asker = Asker(llm, asyncio.Semaphore(4), patience_s=0)
        await do(Generate(asker, asker, embedder, closed))
    assert len({asked.body["seed"] for asked in of(server, "filter")}) == 18


# What LLMs do with a form


async def test_a_reply_that_cannot_be_read_is_asked_for_again_with_what_was_wrong(
    server: ScriptedLlm, work: Generate
) -> None:
    world = World()

    def script(asked: Asked) -> Said | str:
        begun = len(asked.body["messages"]) == 2
        return listed(dict(enumerate(PLACE.claims[:4], 1))) if task(asked) == "claims" and begun else world(asked)

    server.script = script
    assert without_times((await do(work)).rows) == PLACE.rows(seed=7)
    _, again = of(server, "claims")
    assert [turn["role"] for turn in again.body["messages"]] == ["system", "user", "assistant", "user"]
    assert again.body["messages"][2]["content"].startswith("1. Port Alder has a wooden pier.")
    assert "it has 4 claims on numbered lines where 6 are needed" in again.user


async def test_items_that_never_come_are_counted(server: ScriptedLlm, work: Generate) -> None:
    world = World()

    def script(asked: Asked) -> Said | str:
        if task(asked) == "claims":
            return listed(dict(enumerate(PLACE.claims[:5], 1)))
        if task(asked) == "recover":
            return "\n".join(line for line in str(world(asked)).splitlines() if not line.startswith("2."))
        return world(asked)

    server.script = script
    done = await do(work)
    assert done.counts["claims.missing"] == 1
    assert done.counts["guesses.missing"] == 1
    assert [row["claim"] for row in done.rows] == [PLACE.guess(1, 2), None]


async def test_a_list_of_guesses_that_was_renumbered_gives_no_claims_as_guesses(
    server: ScriptedLlm, work: Generate
) -> None:
    world = World()

    def script(asked: Asked) -> Said | str:
        if task(asked) != "recover":
            return world(asked)
        there = [claim for claim in tagged("claim", first_turn(asked)) if claim != "(missing)"]
        return listed(dict(enumerate(there, 1)))

    server.script = script
    done = await do(work)
    assert done.counts["guesses.made"] == 0
    assert done.counts["failed_steps.guesses"] == 6
    assert [row["in_scope"] for row in done.rows] == [True]


@pytest.mark.parametrize("form", ["{number}) {text}", "* {text}", "{wrong}. {text}"])
async def test_a_removal_is_known_by_its_words(server: ScriptedLlm, work: Generate, form: str) -> None:
    world = World()

    def script(asked: Asked) -> Said | str:
        if task(asked) != "remove":
            return world(asked)
        kept = str(world(asked)).splitlines()
        numbered = [line.split(". ", 1) for line in kept]
        return "These are left:\n" + "\n".join(
            form.format(number=number, text=text, wrong=wrong) for wrong, (number, text) in enumerate(numbered, 1)
        )

    server.script = script
    assert without_times((await do(work)).rows) == PLACE.rows(seed=7)


async def test_none_left_is_an_answer(server: ScriptedLlm, work: Generate) -> None:
    world = World()
    server.script = lambda asked: "None." if task(asked) == "remove" else world(asked)
    done = await do(work)
    assert len(of(server, "remove")) == 1
    assert "failed_steps.removal" not in done.counts
    assert not of(server, "questions")


async def test_what_is_no_question_gives_none(server: ScriptedLlm, work: Generate) -> None:
    world = World()

    def script(asked: Asked) -> Said | str:
        said = world(asked)
        return (
            str(said).replace("1. Who owns", "1. Tell me who owns").replace("Alder?", "Alder.", 1)
            if task(asked) == "questions"
            else said
        )

    server.script = script
    done = await do(work)
    assert len(of(server, "questions")) == 2
    assert "what stands under 1 is no question" in of(server, "questions")[1].user
    assert done.counts["dropped.no_question"] == 2
    assert PLACE.questions[1] not in {row["question"] for row in done.rows}


async def test_votes_that_cannot_be_read_decide_nothing(server: ScriptedLlm, work: Generate) -> None:
    world = World()

    def script(asked: Asked) -> Said | str:
        if task(asked) == "filter":
            first = asked.body.get("n") == 3
            return Said(["Confusing: yes", "Hm.", "Who knows?"] if first else ["Confusing: no", "Confusing? Maybe."])
        return world(asked)

    server.script = script
    done = await do(work)
    assert done.counts["dropped.undecided"] == 6
    assert not done.rows
    assert done.counts["without_questions"] == 1
    assert [asked.body.get("n") for asked in of(server, "filter")].count(2) == 6


# What fails


@pytest.mark.parametrize("garbage", ["", "lorem ipsum " * 200, "1.\n2.\n3.", "�\x00<|eot_id|>", '{"a": [1,'])
async def test_garbage_is_counted_and_crashes_nothing(server: ScriptedLlm, work: Generate, garbage: str) -> None:
    server.script = lambda _: garbage
    done = await do(work)
    assert done.rows == ()
    assert done.counts == {
        "documents": 1,
        "failed_steps.claims": 1,
        "failed_steps.in_scope_questions": 1,
        "questions.in_scope": 0,
        "questions.out_of_scope": 0,
        "dropped.duplicate": 0,
        "without_questions": 1,
    }
    assert any(note.startswith("port_alder: claims: the LLM's reply cannot be used: ") for note in done.notes)


@pytest.mark.parametrize("broken", ["claims", "recover", "remove", "questions", "in_scope", "filter", "kind"])
async def test_a_step_that_fails_costs_what_hangs_on_it(server: ScriptedLlm, work: Generate, broken: str) -> None:
    world = World()
    server.script = lambda asked: Said(status=500) if task(asked) == broken else world(asked)
    done = await do(work)
    kept = {row["id"] for row in done.rows}
    beyond, within = {"port_alder_1_1", "port_alder_1_2"}, {"port_alder_0_1"}
    assert kept == {"in_scope": beyond, "filter": set(), "kind": beyond | within}.get(broken, within)
    failed = {name: count for name, count in done.counts.items() if name.startswith("failed_steps.")}
    counted = {"recover": ("guesses", 6), "remove": ("removal", 1), "in_scope": ("in_scope_questions", 1)}
    counted |= {"filter": ("votes", 6), "kind": ("confusion_types", 2)}
    name, count = counted.get(broken, (broken, 1))
    assert failed == {f"failed_steps.{name}": count}
    assert len(done.notes) == count
    if broken == "kind":
        assert [row["confusion"] for row in done.rows] == [None, None, None]


async def test_a_server_that_stays_away_fails_the_document(server: ScriptedLlm, work: Generate) -> None:
    server.script = lambda _: Said(status=503)
    with pytest.raises(LlmAway):
        await do(work)


async def test_a_server_that_comes_back_is_waited_for(
    server: ScriptedLlm, llm: Llm, embedder: Embedder, closed: Knowledge
) -> None:
    world, asked_for = World(), []

    def script(asked: Asked) -> Said | str:
        asked_for.append(asked)
        return Said(status=503) if len(asked_for) <= 3 else world(asked)

    server.script = script
    asker = Asker(llm, asyncio.Semaphore(16), patience_s=20)
    done = await do(Generate(asker, asker, embedder, closed))
    assert without_times(done.rows) == PLACE.rows(seed=7)


async def test_cancelling_ends_every_request(server: ScriptedLlm, work: Generate) -> None:
    server.script = lambda _: Said("late", after_s=30)
    doing = asyncio.create_task(do(work))
    while len(server.asked) < 2:
        await asyncio.sleep(0.01)
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    async with asyncio.timeout(5):
        while not all(asked.gone_at for asked in server.asked):
            await asyncio.sleep(0.01)


# Documents


def test_a_short_document_stays_as_it_is() -> None:
    text = "One\nline.\n\nAnother.  And a third."
    assert shortened(f"  {text}\n") == text


def test_a_long_one_ends_with_the_sentence_that_passes_300_words() -> None:
    sentences = [f"Sentence {number} has exactly eight words in all." for number in range(60)]
    kept = shortened("\n\n".join(sentences))
    assert kept == "\n\n".join(sentences[:38])
    assert word_count(kept) == 304


def test_a_huge_document_without_a_stop_is_cut_all_the_same() -> None:
    kept = shortened("word " * 4_000_000)
    assert 300 < word_count(kept) < 1_000


@pytest.mark.parametrize(("count", "skipped"), [(149, True), (150, False)])
def test_150_words_are_enough(count: int, skipped: bool) -> None:
    assert (too_short("word " * count) is not None) is skipped


async def test_what_counts_is_what_is_left_after_the_cut(work: Generate) -> None:
    texts = ("a" + 20_000 * " " + 200 * "word ", 200 * ("x" * 999 + " "), 1_000 * "word ")
    documents = [{"id": str(number), "text": text} for number, text in enumerate(texts)]
    items = await work.items(SPEC | {"documents": documents})
    assert [item.body["skipped"] for item in items] == [
        "1 word, and at least 150 are needed",
        "8 words, and at least 150 are needed",
        None,
    ]
    assert len(items[2].body["text"]) <= 8_000


def test_words_are_counted_in_any_script() -> None:
    assert word_count("东京塔 is high.") == 5
    assert word_count("— Ça, c'est l'été ; là-bas.") == 6


async def test_what_is_skipped_is_there_and_says_why(work: Generate) -> None:
    documents = [PLACE.document, PLACE.document | {"id": "short", "text": "Far too short."}, {"id": "none", "text": ""}]
    items = await work.items({"documents": documents})
    assert [item.key for item in items] == ["port_alder", "short", "none"]
    done = [await work.do({}, item, lambda _: None) for item in items[1:]]
    assert [one.counts for one in done] == [{"documents": 1, "skipped.too_short": 1}] * 2
    summary = await work.finish({}, done)
    assert summary["skipped"] == {"too_short": 2}
    assert summary["notes"] == [
        "short: skipped: 3 words, and at least 150 are needed",
        "none: skipped: 0 words, and at least 150 are needed",
    ]


async def test_a_scope_gives_its_documents(work_on_scopes: Generate, knowledge: Knowledge) -> None:
    await knowledge.add_documents(
        "places", [Document("d1", "A day", PLACE.text, "guide"), Document("d2", None, "No.", None)]
    )
    items = await work_on_scopes.items({"scope": "places"})
    assert items[0] == Item(
        "d1",
        {"id": "d1", "title": "A day", "topic": None, "source": "guide", "text": PLACE.text.strip(), "skipped": None},
    )
    assert items[1].body["skipped"]


async def test_a_scope_without_documents_is_no_material(work_on_scopes: Generate) -> None:
    with pytest.raises(Invalid, match="no documents"):
        await work_on_scopes.items({"scope": "default"})


async def test_a_failed_item_does_not_spoil_the_summary(work: Generate) -> None:
    good = Done((), {"documents": 1, "failed_steps.claims": 1}, ("a: claims: the LLM answered with status 500",))
    assert await work.finish({}, [good, Done((), {"failed": 1})]) == {
        "documents": 1,
        "failed": 1,
        "failed_steps": {"claims": 1},
        "notes": ["a: claims: the LLM answered with status 500"],
        "notes_left_out": 0,
    }
