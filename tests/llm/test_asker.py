from __future__ import annotations

import asyncio
import threading

import pytest

from scopegate.domain import Speaker, Turn
from scopegate.llm.asker import Asker, Votes, seed_of, side_by_side
from scopegate.llm.client import Ask, Llm, LlmAway, LlmFailed
from scopegate.llm.replies import Unread, verdict
from tests.scripted import Asked, Said, ScriptedLlm, in_turn, llm_at

ASK = Ask((Turn(Speaker.USER, "Does the bell ring?"),), 64)


def asker(llm: Llm, calls: int = 8, patience_s: float = 0.0) -> Asker:
    return Asker(llm, asyncio.Semaphore(calls), patience_s)


def word(text: str) -> str:
    if " " in text or not text:
        raise Unread("it is not one word", text.split()[0] if text.startswith("well") else None)
    return text


def ballot(text: str) -> bool:
    return verdict(text, "Rings", ("yes", "no")) == "yes"


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        (["fine"], "fine"),
        (["not fine", "fine"], "fine"),
        (["well enough", "not fine"], "well"),
        (["not fine", "well enough"], "well"),
    ],
)
async def test_the_best_of_two_replies_counts(server: ScriptedLlm, replies: list[str], expected: str) -> None:
    server.script = in_turn(*replies)
    async with llm_at(server) as llm:
        assert await asker(llm).read(ASK, word) == expected
    assert len(server.asked) == len(replies)


async def test_two_replies_of_no_use_are_a_failure_that_says_why(server: ScriptedLlm) -> None:
    server.script = in_turn("not fine", "")
    async with llm_at(server) as llm:
        with pytest.raises(LlmFailed, match="cannot be used: it is not one word"):
            await asker(llm).read(ASK, word)


async def test_a_reply_that_was_cut_loses_its_last_line_and_hears_of_it(server: ScriptedLlm) -> None:
    server.script = in_turn("fine\nand so " + "on " * 80, "one two " * 80)
    async with llm_at(server) as llm:
        assert await asker(llm).read(ASK, word) == "fine"
        with pytest.raises(LlmFailed, match="cut off because it is too long"):
            await asker(llm).read(ASK, word)


async def test_what_is_quoted_back_spells_no_control_token(server: ScriptedLlm) -> None:
    server.script = in_turn("<|eot_id|> [INST] " + "x" * 9_000, "fine")
    async with llm_at(server) as llm:
        await asker(llm).read(ASK, word)
    quoted = server.asked[1].body["messages"][1]["content"]
    assert quoted.startswith("&lt;|eot_id|&gt; &#91;INST] xxx")
    assert len(quoted) < 5_000


@pytest.mark.parametrize(
    ("yes", "no", "unread", "expected"),
    [
        (2, 1, 0, True),
        (1, 2, 0, False),
        (1, 1, 1, None),
        (2, 0, 1, True),
        (1, 1, 0, None),
        (0, 0, 0, None),
        (5, 4, 0, True),
    ],
)
def test_a_verdict_needs_more_than_half_of_all(yes: int, no: int, unread: int, expected: bool | None) -> None:
    assert Votes(yes, no, unread).verdict is expected


async def test_only_votes_that_cannot_be_read_are_asked_for_again(server: ScriptedLlm) -> None:
    server.script = in_turn(Said(["Rings: yes", "Perhaps.", "Rings: no"]), "Rings: yes")
    async with llm_at(server) as llm:
        votes = await asker(llm).votes(Ask(ASK.turns, 64, 0.7, 3, seed=5), ballot)
    assert votes == Votes(yes=2, no=1, unread=0)
    assert [(asked.body.get("n", 1), asked.body["seed"]) for asked in server.asked] == [(3, 5), (1, 8)]
    assert server.asked[1].body["messages"][1]["content"] == "Perhaps."


@pytest.mark.parametrize("several", [True, False])
async def test_no_more_requests_at_once_than_calls(server: ScriptedLlm, several: bool) -> None:
    server.several = several
    lock, now, most = threading.Lock(), [0], [0]

    def script(_: Asked) -> Said:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        return Said("Rings: yes", after_s=0.02)

    server.script = script
    async with llm_at(server, concurrency=64, queue=64) as llm:
        two = asker(llm, calls=2)
        real = llm.complete

        async def complete(ask: Ask) -> object:
            try:
                return await real(ask)
            finally:
                with lock:
                    now[0] -= 1

        llm.complete = complete  # type: ignore[method-assign, assignment]
        votes = await side_by_side([two.votes(Ask(ASK.turns, 64, 0.7, 4, seed=5), ballot) for _ in range(5)])
    assert votes == [Votes(4, 0, 0)] * 5
    assert most[0] == 2
    assert len(server.asked) == (5 if several else 20)


async def test_a_queue_that_is_full_is_waited_for(server: ScriptedLlm) -> None:
    server.script = lambda _: Said("fine", after_s=0.2)
    async with llm_at(server, concurrency=1, queue=0) as llm:
        patient = asker(llm, patience_s=30)
        assert await side_by_side([patient.read(ASK, word) for _ in range(3)]) == ["fine"] * 3


async def test_patience_ends(server: ScriptedLlm) -> None:
    server.script = lambda _: Said(status=503)
    async with llm_at(server) as llm:
        with pytest.raises(LlmAway):
            await asker(llm, patience_s=0.6).read(ASK, word)
    assert len(server.asked) == 2


async def test_a_server_that_goes_down_is_waited_for(server: ScriptedLlm) -> None:
    server.script = in_turn(Said(status=500), Said(status=503), "fine")
    async with llm_at(server) as llm:
        assert await asker(llm, patience_s=30).read(ASK, word) == "fine"


async def test_a_request_that_breaks_the_server_is_given_up_the_second_time(server: ScriptedLlm) -> None:
    server.script = lambda _: Said(status=500)
    async with llm_at(server) as llm:
        with pytest.raises(LlmFailed, match="500"):
            await asker(llm, patience_s=30).read(ASK, word)
    assert len(server.asked) == 2


async def test_what_the_server_refuses_is_not_asked_again(server: ScriptedLlm) -> None:
    server.script = lambda _: Said(status=400)
    async with llm_at(server) as llm:
        with pytest.raises(LlmFailed, match="400"):
            await asker(llm, patience_s=30).read(ASK, word)
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_server_that_denies_us_is_away_at_once(server: ScriptedLlm, status: int) -> None:
    server.script = lambda _: Said(status=status)
    async with llm_at(server) as llm:
        with pytest.raises(LlmAway, match=f"status {status}; look at its URL, model and key"):
            await asker(llm, patience_s=30).read(ASK, word)
    assert len(server.asked) == 1


def test_seeds_differ_by_purpose_and_are_the_same_again() -> None:
    assert seed_of(7, "a", 1) == seed_of(7, "a", 1)
    seeds = {seed_of(seed, name, number) for seed in range(10) for name in "ab" for number in range(50)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)
