"""The LLM client against the real protocol: what it sends, what it tries again, and how each failure ends."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from contextlib import nullcontext
from dataclasses import replace
from email.utils import formatdate
from typing import Literal

import anyio
import pytest

from scopegate.domain import Overloaded, Speaker, Turn
from scopegate.llm.client import Ask, Llm, LlmAway, LlmFailed, Piece, Usage, by_id, ending
from tests.scripted import FOREVER, Asked, Said, ScriptedLlm, always, in_turn, llm_at, until

ASK = Ask((Turn(Speaker.SYSTEM, "Be brief."), Turn(Speaker.USER, "Where is the bell?")), 50)
KEY = "sk-very-secret"


async def streamed(llm: Llm, ask: Ask = ASK) -> list[Piece]:
    async with llm.stream(ask) as pieces:
        return [piece async for piece in pieces]


async def came(server: ScriptedLlm, count: int) -> None:
    """Waits until the server has so many requests."""
    async with asyncio.timeout(5):
        while len(server.asked) < count:
            await asyncio.sleep(0.005)


async def gone(asked: Asked) -> None:
    """Waits until the server sees that the client went away."""
    async with asyncio.timeout(5):
        while asked.gone_at is None:
            await asyncio.sleep(0.005)


class TestWhole:
    async def test_a_reply_with_its_usage(self, server: ScriptedLlm, llm: Llm) -> None:
        server.script = always(Said("In the east tower.", cached=3))
        reply = await llm.complete(ASK)
        assert reply.texts == ("In the east tower.",)
        assert reply.cut == (False,)
        assert reply.usage == Usage(prompt=6, completion=4, cached=3)
        assert server.asked[0].body["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Where is the bell?"},
        ]
        assert server.asked[0].body["model"] == llm.model == "scripted-1"

    async def test_a_reply_that_ends_at_max_tokens_says_so(self, server: ScriptedLlm, llm: Llm) -> None:
        server.script = always("one two three")
        reply = await llm.complete(Ask(ASK.turns, 2))
        assert reply.texts == ("one two",)
        assert reply.cut == (True,)

    async def test_several_replies_are_one_request(self, server: ScriptedLlm, llm: Llm) -> None:
        server.script = always(Said(("yes", "no", "yes")))
        assert (await llm.complete(Ask(ASK.turns, 5, temperature=0.7, n=3))).texts == ("yes", "no", "yes")
        assert len(server.asked) == 1

    async def test_a_server_that_knows_no_n_is_asked_as_often(self, server: ScriptedLlm) -> None:
        server.several = False
        server.script = in_turn("yes", "no", "yes")
        async with llm_at(server) as llm:
            reply = await llm.complete(Ask(ASK.turns, 5, temperature=0.7, n=3))
        assert sorted(reply.texts) == ["no", "yes", "yes"]
        assert reply.usage == Usage(prompt=18, completion=3, cached=0)

    async def test_one_of_several_that_fails_fails_all(self, server: ScriptedLlm) -> None:
        server.several = False
        server.script = in_turn("yes", Said(status=400), "yes")
        async with llm_at(server) as llm:
            with pytest.raises(LlmFailed, match="status 400"):
                await llm.complete(Ask(ASK.turns, 5, n=3))

    async def test_tokens_named_by_id(self, server: ScriptedLlm, llm: Llm) -> None:
        assert llm.capabilities is not None
        assert llm.capabilities.label_ids is not None
        yes, no = llm.capabilities.label_ids.yes[0], llm.capabilities.label_ids.no[0]
        server.script = always(Said("yes", first={"yes": -0.1, "no": -2.3}))
        first = by_id((await llm.complete(Ask(ASK.turns, 1, token_ids=(yes, no)))).first)
        assert first == {yes: -0.1, no: -2.3}

    async def test_the_most_likely_tokens(self, server: ScriptedLlm, llm: Llm) -> None:
        server.script = always(Said("yes", first={"yes": -0.1, "no": -2.3}))
        assert (await llm.complete(Ask(ASK.turns, 1, top_logprobs=2))).first == {"yes": -0.1, "no": -2.3}

    @staticmethod
    def ranked(*top: tuple[str, str]) -> Said:
        listed = ", ".join(f'{{"token": "{token}", "logprob": {logprob}}}' for token, logprob in top)
        logprobs = f'{{"content": [{{"top_logprobs": [{listed}]}}]}}'
        return Said(body=f'{{"choices": [{{"message": {{"content": "x"}}, "logprobs": {logprobs}}}]}}'.encode())

    async def test_tokens_that_are_written_alike_are_one(self, server: ScriptedLlm, llm: Llm) -> None:
        server.script = always(self.ranked(("yes", "-1.0"), ("no", "-3.0"), ("yes", "-1.0"), ("", "-Infinity")))
        first = (await llm.complete(Ask(ASK.turns, 1, top_logprobs=4))).first
        assert first == {"yes": pytest.approx(math.log(2) - 1), "no": -3.0, "": -math.inf}

    @pytest.mark.parametrize("logprob", ["NaN", "Infinity", "0.5", "null", '"x"', "[]"])
    async def test_a_logprob_that_is_none(self, server: ScriptedLlm, llm: Llm, logprob: str) -> None:
        server.script = always(self.ranked(("yes", logprob)))
        with pytest.raises(LlmFailed, match="is not of the protocol"):
            await llm.complete(Ask(ASK.turns, 1, top_logprobs=1))

    async def test_a_schema_holds_the_reply(self, server: ScriptedLlm, llm: Llm) -> None:
        schema = {"type": "object", "properties": {"label": {"enum": ["f1", "f2"]}}, "required": ["label"]}
        server.script = always("I would rather chat.")
        assert (await llm.complete(Ask(ASK.turns, 9, schema=schema))).texts == ('{"label":"f1"}',)

    async def test_what_a_client_sent_goes_through_but_takes_nothing_over(self, server: ScriptedLlm, llm: Llm) -> None:
        options = {"seed": 7, "top_k": 3, "temperature": 0.4, "stream": True, "model": "other", "max_tokens": 9_999}
        await llm.complete(Ask(ASK.turns, 9, options=options))
        body = server.asked[0].body
        assert (body["seed"], body["top_k"], body["temperature"]) == (7, 3, 0.4)
        assert (body["model"], body["max_tokens"], "stream" in body) == ("scripted-1", 9, False)

    async def test_halves_of_characters(self, server: ScriptedLlm, llm: Llm) -> None:
        """JSON lets them through, and nothing that the text goes to would take them."""
        server.script = always(Said(("\ud83d\ude00 and \ud83d", "\ude00\ud83d", "\ufeffplain")))
        reply = await llm.complete(replace(ASK, n=3))
        assert reply.texts == ("\N{GRINNING FACE} and \ufffd", "\ufffd\ufffd", "\ufeffplain")

    async def test_no_more_replies_than_were_asked_for(self, server: ScriptedLlm, llm: Llm) -> None:
        server.script = always(Said(body=b'{"choices": [' + b'{"message": {"content": "x"}}, ' * 9 + b"{}]}"))
        assert (await llm.complete(replace(ASK, n=2))).texts == ("x", "x")

    async def test_newer_fields_where_the_older_are_refused(self, server: ScriptedLlm) -> None:
        def reasoning(asked: Asked) -> Said | str:
            older = {"max_tokens", "temperature"} & asked.body.keys()
            return Said(status=400) if older else "Hello."

        server.greeting = server.script = reasoning
        async with llm_at(server) as llm:
            assert (await llm.complete(ASK)).texts == ("Hello.",)
        assert server.asked[0].body["max_completion_tokens"] == 50


class TestStream:
    async def test_pieces_as_they_come(self, server: ScriptedLlm, llm: Llm) -> None:
        server.script = always(Said("In the east tower.", drip_s=0.05))
        async with llm.stream(ASK) as pieces:
            pieces_sent = [(piece.text, server.asked[0].sent) async for piece in pieces]
        assert [text for text, _ in pieces_sent] == ["In", " the", " east", " tower.", ""]
        assert pieces_sent[0][1] < pieces_sent[2][1] < pieces_sent[3][1] == 4

    async def test_halves_of_a_character_in_two_pieces_are_one(self, server: ScriptedLlm, llm: Llm) -> None:
        chunks = [
            {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}
            for text, finish in (
                ("a\ud83d", None),
                ("", None),
                ("\ude00b", None),
                ("\ude00c\ud83d", None),
                ("", "stop"),
            )
        ]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        server.script = always(Said(body=body.encode(), headers={"content-type": "text/event-stream"}))
        assert [piece.text for piece in await streamed(llm)] == ["a", "\N{GRINNING FACE}b", "\ufffdc", "\ufffd"]

    async def test_the_first_piece_alone_carries_logprobs(self, server: ScriptedLlm, llm: Llm) -> None:
        server.script = always(Said("yes it can", first={"yes": -0.1, "no": -2.3}))
        pieces = await streamed(llm, Ask(ASK.turns, 2, top_logprobs=2))
        assert [piece.first for piece in pieces] == [{"yes": -0.1, "no": -2.3}, {}, {}, {}]
        assert [piece.cut for piece in pieces] == [False, False, True, False]
        assert pieces[-1].usage == Usage(prompt=6, completion=2, cached=0)

    @pytest.mark.parametrize(
        ("then", "sentence"),
        [("cut", "broke the connection"), ("error", "reported an error amid its reply")],
    )
    async def test_a_stream_that_breaks_off(self, server: ScriptedLlm, llm: Llm, then: str, sentence: str) -> None:
        server.script = always(Said("one two three", stops_after=2, then=then))  # type: ignore[arg-type]
        async with llm.stream(ASK) as pieces:
            assert [(await anext(pieces)).text for _ in range(2)] == ["one", " two"]
            with pytest.raises(LlmFailed, match=sentence):
                await anext(pieces)
        assert len(server.asked) == 1, "what was begun is not begun again"

    async def test_a_stream_that_ends_without_an_end(self, server: ScriptedLlm, llm: Llm) -> None:
        server.script = always(Said(body=b"data: [DONE]\n\n", headers={"content-type": "text/event-stream"}))
        with pytest.raises(LlmFailed, match="ended before its reply was complete"):
            await streamed(llm)

    async def test_an_error_of_the_callers_own_stays_what_it_is(self, server: ScriptedLlm, llm: Llm) -> None:
        with pytest.raises(ValueError, match="mine"):
            async with llm.stream(ASK):
                raise ValueError("mine")
        with pytest.raises(TimeoutError):
            async with llm.stream(ASK), asyncio.timeout(0.01):
                await asyncio.sleep(1)

    async def test_chunks_that_are_none(self, server: ScriptedLlm, llm: Llm) -> None:
        for chunk in (
            b"{",
            b"[]",
            b"null",
            b'{"choices": null}',
            b'{"choices": [{"index": 0}]}',
            b'{"choices": [{"index": 0, "delta": {"content": ["x"]}}]}',
            b'{"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [7]}}]}',
            b"\xff\xfe",
        ):
            body = b"data: " + chunk + b"\n\ndata: [DONE]\n\n"
            server.script = always(Said(body=body, headers={"content-type": "text/event-stream"}))
            with pytest.raises(LlmFailed):
                await streamed(llm)
            assert server.asked.pop().body["stream"], chunk


class TestBadReplies:
    @pytest.mark.parametrize("content_type", ["application/json", "text/html"])
    async def test_each_is_one_failure(self, server: ScriptedLlm, llm: Llm, content_type: str) -> None:
        for body in (
            b"{not json",
            b"",
            b"null",
            b"[1]",
            b"{}",
            b"[" * 100_000,
            b'{"choices": []}',
            b'{"choices": null}',
            b'{"choices": [null]}',
            b'{"choices": [{"message": null}]}',
            b'{"choices": [{"message": {"content": 7}}]}',
            b'{"choices": [{"message": {"content": [{"type": "text"}]}}]}',
            b'{"choices": [{"message": {}, "logprobs": {"content": [{"top_logprobs": [{"token": 1}]}]}}]}',
            b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": "many"}}',
            b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 1e999, "completion_tokens": 1}}',
            b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 1e300, "completion_tokens": 1}}',
            b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": -1, "completion_tokens": 1}}',
            b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1, '
            b'"prompt_tokens_details": {"cached_tokens": "zz"}}}',
            b'{"error": {"message": "no"}}',
            b"\xff\xfe",
        ):
            server.script = always(Said(body=body, headers={"content-type": content_type}))
            with pytest.raises(LlmFailed, match="the LLM server's answer is"):
                await llm.complete(ASK)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_one_that_does_not_end(self, server: ScriptedLlm, llm: Llm, stream: bool) -> None:
        body = b'data: {"choices": [{"index": 0, "delta": {"content": "' + b"x" * (9 << 20)
        server.script = always(
            Said(body=body, headers={"content-type": "text/event-stream" if stream else "application/json"})
        )
        with pytest.raises(LlmFailed, match="does not end"):
            await (streamed(llm) if stream else llm.complete(ASK))

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("status", [400, 429, 500, 503])
    @pytest.mark.parametrize("then", ["cut", "hang"])
    async def test_a_failure_whose_body_breaks_off_is_its_status(
        self, server: ScriptedLlm, llm: Llm, status: int, stream: bool, then: Literal["cut", "hang"]
    ) -> None:
        server.script = always(Said(status=status, stops_after=0, then=then))
        async with asyncio.timeout(5):
            with pytest.raises(LlmFailed, match=f"status {status}"):
                await (streamed(llm) if stream else llm.complete(ASK))

    async def test_an_empty_list_of_choices(self, server: ScriptedLlm, llm: Llm) -> None:
        server.script = always(Said(choices=False))
        with pytest.raises(LlmFailed, match="is empty"):
            await llm.complete(ASK)
        with pytest.raises(LlmFailed, match="ended before"):
            await streamed(llm)

    async def test_a_refusal_in_its_own_field_is_what_was_said(self, server: ScriptedLlm, llm: Llm) -> None:
        body = b'{"choices": [{"index": 0, "message": {"content": null, "refusal": "I would rather not."}}]}'
        server.script = always(Said(body=body))
        assert (await llm.complete(ASK)).texts == ("I would rather not.",)

    async def test_no_content_is_no_text(self, server: ScriptedLlm, llm: Llm) -> None:
        server.script = always(Said(body=b'{"choices": [{"message": {"content": null}, "finish_reason": "length"}]}'))
        reply = await llm.complete(ASK)
        assert (reply.texts, reply.cut, reply.usage) == (("",), (True,), None)


class TestTriedAgain:
    @pytest.mark.parametrize("status", [429, 502, 503])
    @pytest.mark.parametrize("stream", [False, True])
    async def test_what_may_pass(self, server: ScriptedLlm, status: int, stream: bool) -> None:
        server.script = in_turn(Said(status=status), "Here.")
        async with llm_at(server, retries=1) as llm:
            text = (await streamed(llm))[0].text if stream else (await llm.complete(ASK)).texts[0]
        assert text == "Here."
        assert len(server.asked) == 2
        # Half a second, less a random quarter of it at most.
        assert server.asked[1].at - server.asked[0].at > 0.37

    async def test_what_will_not(self, server: ScriptedLlm) -> None:
        statuses = [307, 400, 401, 403, 404, 408, 409, 422, 500, 504]
        async with llm_at(server, retries=3) as llm:
            for status in statuses:
                server.script = always(Said(status=status, headers={"x-should-retry": "true"}))
                with pytest.raises(LlmFailed, match=f"status {status}"):
                    await llm.complete(ASK)
        assert len(server.asked) == len(statuses)

    async def test_as_late_as_the_server_asks(self, server: ScriptedLlm) -> None:
        server.script = in_turn(Said(status=429, headers={"retry-after": "1"}), "Here.")
        async with llm_at(server, retries=1) as llm:
            await llm.complete(ASK)
        assert server.asked[1].at - server.asked[0].at >= 1

    async def test_not_at_all_where_that_is_too_late(self, server: ScriptedLlm) -> None:
        server.script = always(Said(status=429, headers={"retry-after": "60"}))
        async with llm_at(server, retries=5) as llm:
            started = time.monotonic()
            with pytest.raises(LlmAway, match="status 429"):
                await llm.complete(ASK)
        assert time.monotonic() - started < 10
        assert len(server.asked) == 1

    async def test_a_date_counts_as_the_seconds_until_then(self, server: ScriptedLlm) -> None:
        async with llm_at(server, retries=1) as llm:
            for ahead_s, asked in ((45, 1), (2, 3)):
                date = formatdate(time.time() + ahead_s, usegmt=True)
                server.script = always(Said(status=429, headers={"retry-after": date}))
                started = time.monotonic()
                with pytest.raises(LlmAway, match="status 429"):
                    await llm.complete(ASK)
                assert time.monotonic() - started < 10
                assert len(server.asked) == asked

    @pytest.mark.parametrize("retry_after", ["soon", "nan", "inf", "1e999", "-7", "Sat, 99 Nov 2026 99:00:00 GMT", ""])
    async def test_what_is_no_time_is_no_long_wait(self, server: ScriptedLlm, retry_after: str) -> None:
        headers = {"retry-after": retry_after, "retry-after-ms": "50000"}
        server.script = in_turn(Said(status=429, headers=headers), Said(status=400))
        async with llm_at(server, retries=1) as llm:
            started = time.monotonic()
            with pytest.raises(LlmFailed, match="status 4"):
                await llm.complete(ASK)
        assert time.monotonic() - started < 10

    @pytest.mark.parametrize("stream", [False, True])
    async def test_not_at_all_where_the_caller_is_gone_by_then(self, server: ScriptedLlm, stream: bool) -> None:
        server.script = always(Said(status=429, headers={"retry-after": "8"}))
        async with llm_at(server, retries=2) as llm:
            started = time.perf_counter()
            with ending(started + 7), pytest.raises(LlmAway, match="status 429"):
                await (streamed(llm) if stream else llm.complete(ASK))
        assert time.perf_counter() - started < 6
        assert len(server.asked) == 1

    async def test_the_last_failure_is_told_before_the_caller_is_gone(self, server: ScriptedLlm) -> None:
        async with llm_at(server, retries=50) as llm:
            server.die()
            end = time.perf_counter() + 1.5
            with ending(end), pytest.raises(LlmAway, match="could not be reached"):
                await llm.complete(ASK)
            assert time.perf_counter() < end
        server.come_back()

    async def test_only_so_often(self, server: ScriptedLlm) -> None:
        server.script = always(Said(status=503, headers={"retry-after": "0.01"}))
        async with llm_at(server, retries=2) as llm:
            with pytest.raises(LlmAway, match="status 503"):
                await llm.complete(ASK)
        assert len(server.asked) == 3

    async def test_a_reply_that_breaks_off(self, server: ScriptedLlm) -> None:
        server.script = in_turn(Said("Here.", stops_after=0), "Here.")
        async with llm_at(server, retries=1) as llm:
            assert (await llm.complete(ASK)).texts == ("Here.",)
        assert len(server.asked) == 2

    async def test_a_server_that_comes_back(self, server: ScriptedLlm) -> None:
        server.script = always("Here.")
        async with llm_at(server, retries=4) as llm:
            server.die()
            asking = asyncio.create_task(llm.complete(ASK))
            await asyncio.sleep(0.1)
            server.come_back()
            assert (await asking).texts == ("Here.",)

    async def test_a_server_that_stays_away(self, server: ScriptedLlm, llm: Llm) -> None:
        server.die()
        with pytest.raises(LlmAway, match="could not be reached"):
            await llm.complete(ASK)
        server.come_back()


class TestTime:
    @pytest.mark.parametrize(
        "said",
        [Said(after_s=FOREVER), Said("one two", stops_after=1, then="hang"), Said("one two", drip_s=1)],
        ids=["before the headers", "amid the reply", "dripping"],
    )
    @pytest.mark.parametrize("stream", [False, True])
    async def test_nothing_outlasts_the_cap(self, server: ScriptedLlm, said: Said, stream: bool) -> None:
        server.script = always(said)
        async with llm_at(server, timeout_s=1.2, retries=3) as llm:
            with pytest.raises(LlmAway, match="did not answer in time"):
                await (streamed(llm) if stream else llm.complete(ASK))
        await gone(server.wait_for(1))
        assert len(server.asked) == 1, "what was late is not asked again"

    @pytest.mark.parametrize("after_s", [FOREVER, 0.0], ids=["before the headers", "amid the body"])
    async def test_a_callers_deadline_reaches_the_server(self, server: ScriptedLlm, llm: Llm, after_s: float) -> None:
        server.script = always(Said("one two", after_s=after_s, stops_after=1, then="hang"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await llm.complete(ASK)
        await gone(server.asked[0])

    async def test_a_cancelled_task_reaches_the_server(self, server: ScriptedLlm, llm: Llm) -> None:
        server.script = always(Said(after_s=FOREVER))
        asking = asyncio.create_task(llm.complete(ASK))
        await came(server, 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await gone(server.asked[0])

    async def test_leaving_a_stream_reaches_the_server(self, server: ScriptedLlm, llm: Llm) -> None:
        server.script = always(Said("word " * 1000, drip_s=0.01))
        async with llm.stream(ASK) as pieces:
            assert (await anext(pieces)).text == "word"
        await gone(server.asked[0])
        assert server.asked[0].sent < 20

    async def test_a_cancelled_scope_reaches_the_server(self, server: ScriptedLlm, llm: Llm) -> None:
        """As where a caller's HTTP client goes away: every wait in the scope is cancelled, again and again."""
        server.script = always(Said("word " * 1000, drip_s=0.01))
        with anyio.move_on_after(0.2):
            async with llm.stream(ASK) as pieces:
                async for _ in pieces:
                    pass
        await gone(server.asked[0])
        assert (await llm.complete(Ask(ASK.turns, 1))).texts == ("word",)


class TestRoom:
    async def test_more_than_may_wait_is_refused_at_once(self, server: ScriptedLlm) -> None:
        server.script = always(Said(after_s=FOREVER))
        async with llm_at(server, concurrency=2, queue=1) as llm:
            asking = [asyncio.create_task(llm.complete(ASK)) for _ in range(3)]
            await came(server, 2)
            with pytest.raises(Overloaded):
                await llm.complete(ASK)
            with pytest.raises(Overloaded):
                await streamed(llm)
            assert len(server.asked) == 2
            asking[0].cancel()
            await came(server, 3)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def test_no_place_is_lost(self, server: ScriptedLlm) -> None:
        async with llm_at(server, concurrency=1, queue=1) as llm:
            server.script = always(Said(after_s=FOREVER))
            for _ in range(2):
                waiting = [asyncio.create_task(llm.complete(ASK)) for _ in range(2)]
                await asyncio.sleep(0.05)
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
            server.script = always(Said(status=500))
            for _ in range(2):
                with pytest.raises(LlmFailed):
                    await streamed(llm)
            server.script = always("Here.")
            assert [reply.texts for reply in await asyncio.gather(llm.complete(ASK), llm.complete(ASK))] == [
                ("Here.",),
                ("Here.",),
            ]


class TestSecrets:
    async def test_no_key_in_a_message_or_a_log(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-server")
        monkeypatch.setenv("OPENAI_ORG_ID", "another-organisation")
        monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer sk-of-another-server")
        caplog.set_level(logging.DEBUG)
        with ScriptedLlm(key="sk-right") as server:
            llm = Llm(server.url, "m", KEY, concurrency=1, queue=0, retries=1)
            with pytest.raises(LlmFailed, match="status 401") as failure:
                await llm.find_out(None)
            logging.getLogger("test").error("failed", exc_info=failure.value)
            await llm.close()
        assert [asked.headers["authorization"] for asked in server.turned_away] == [f"Bearer {KEY}"]
        assert not {"openai-organization", "openai-project"} & server.turned_away[0].headers.keys()
        assert KEY in server.turned_away[0].headers["authorization"]
        assert KEY not in caplog.text
        assert "127.0.0.1" not in str(failure.value)

    async def test_no_key_is_sent_where_none_is_set(self, server: ScriptedLlm, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-server")
        async with llm_at(server) as llm:
            await llm.complete(ASK)
        assert server.asked[0].headers["authorization"] == "Bearer none"


async def test_an_llm_that_was_not_found_out_is_not_asked(server: ScriptedLlm) -> None:
    llm = Llm(server.url, None, None, concurrency=1, queue=0, retries=0)
    with pytest.raises(LlmAway, match="has not answered yet"):
        await llm.complete(ASK)
    with pytest.raises(LlmAway, match="has not answered yet"):
        await streamed(llm)
    await llm.close()
    assert server.asked == []


@pytest.mark.parametrize(("listed", "model"), [("m\ud800", "m\ufffd"), (7, None), (None, None), ([], None)])
async def test_the_first_model_of_a_server_that_lists_none(
    server: ScriptedLlm, monkeypatch: pytest.MonkeyPatch, listed: object, model: str | None
) -> None:
    monkeypatch.setattr("tests.scripted.MODEL", listed)
    llm = Llm(server.url, None, None, concurrency=1, queue=0, retries=0)
    with nullcontext() if model else pytest.raises(LlmFailed, match="is not of the protocol"):
        await llm.find_out(None)
    await llm.close()
    assert llm.model == model


def test_ids_are_no_longer_than_ids_are() -> None:
    assert by_id({"token_id:17": -1.0, "token_id:" + "9" * 5000: -2.0, "token_id:x": -3.0, "yes": -4.0}) == {17: -1.0}


async def test_its_server_may_be_asked_by_many_at_once(server: ScriptedLlm) -> None:
    server.script = lambda asked: Said(asked.user, drip_s=0.001)
    async with llm_at(server, concurrency=32, queue=100) as llm:

        async def ask(number: int) -> str:
            ask = Ask((Turn(Speaker.USER, f"number {number}"),), 10)
            return "".join(piece.text for piece in await streamed(llm, ask))

        assert await asyncio.gather(*map(ask, range(100))) == [f"number {number}" for number in range(100)]
    until(lambda: all(asked.done_at is not None for asked in server.asked))
