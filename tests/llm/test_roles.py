"""Who answers, who judges, who generates: from the settings, and found out in the background."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from scopegate.domain import Invalid, Speaker, Turn
from scopegate.llm.client import Ask, Llm
from scopegate.llm.roles import Llms
from scopegate.llm.server import Server
from scopegate.settings import Settings
from tests.scripted import Said, ScriptedLlm, always, in_turn

ASK = Ask((Turn(Speaker.USER, "Where is the bell?"),), 9)


@pytest.fixture
def other() -> Iterator[ScriptedLlm]:
    with ScriptedLlm() as server:
        yield server


def llms_of(**settings: Any) -> Llms:
    llms = Llms.from_settings(Settings(**settings), None)
    assert llms is not None
    return llms


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


async def sent_key(llm: Llm, server: ScriptedLlm) -> str:
    await llm.find_out(None)
    await llm.complete(ASK)
    return server.asked[-1].headers["authorization"].removeprefix("Bearer ")


def test_no_url_is_no_llm() -> None:
    assert Llms.from_settings(Settings(), None) is None
    assert Llms.from_settings(Settings(llm_url="", llm_judge_url="", llm_judge_api_key=SecretStr("")), None) is None


@pytest.mark.parametrize(
    "name", ["llm_model", "llm_api_key", "llm_judge_url", "llm_judge_model", "llm_generator_api_key"]
)
def test_an_llm_without_a_server_makes_no_sense(name: str) -> None:
    with pytest.raises(Invalid, match=f"SCOPEGATE_{name.upper()} needs SCOPEGATE_LLM_URL"):
        llms_of(**{name: "http://127.0.0.1:9/v1"})


def test_a_path_is_nobodys_business() -> None:
    llms = llms_of(llm_url="http://127.0.0.1:9/v1", llm_model="/srv/models/small", llm_judge_model="lab/large")
    assert [each["model"] for each in llms.status()] == ["small", "lab/large"]


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://", "http://[::1", "http://host:port/v1"])
@pytest.mark.parametrize("name", ["llm_url", "llm_judge_url", "llm_generator_url"])
def test_a_url_that_is_none(name: str, url: str) -> None:
    settings = {"llm_url": "http://127.0.0.1:9/v1"} | {name: url}
    with pytest.raises(Invalid, match="must look like"):
        llms_of(**settings)


async def test_one_llm_has_all_roles_unless_told_otherwise(server: ScriptedLlm) -> None:
    llms = llms_of(llm_url=server.url, llm_judge_url=server.url + "/")
    assert llms.answerer is llms.judge is llms.generator
    assert llms.status() == [
        {"roles": ["answerer", "judge", "generator"], "model": None, "capabilities": None},
    ]
    await llms.stop()


async def test_another_model_on_the_same_server_has_its_key(server: ScriptedLlm) -> None:
    llms = llms_of(llm_url=server.url, llm_model="large", llm_api_key="sk-1", llm_judge_model="small")
    assert llms.judge is not llms.answerer
    assert llms.generator is llms.answerer
    assert await sent_key(llms.judge, server) == "sk-1"
    assert server.asked[-1].body["model"] == "small"
    await llms.stop()


async def test_a_key_goes_to_no_other_server(server: ScriptedLlm, other: ScriptedLlm) -> None:
    llms = llms_of(
        llm_url=server.url,
        llm_model="large",
        llm_api_key="sk-1",
        llm_judge_url=other.url,
        llm_generator_url=other.url,
        llm_generator_api_key="sk-2",
    )
    assert await sent_key(llms.answerer, server) == "sk-1"
    assert await sent_key(llms.judge, other) == "none"
    assert await sent_key(llms.generator, other) == "sk-2"
    assert other.asked[-1].body["model"] == "large"
    await llms.stop()


async def test_a_roles_own_key_goes_to_the_common_server(server: ScriptedLlm) -> None:
    llms = llms_of(llm_url=server.url, llm_api_key="sk-1", llm_judge_api_key=SecretStr("sk-2"))
    assert await sent_key(llms.answerer, server) == "sk-1"
    assert await sent_key(llms.judge, server) == "sk-2"
    await llms.stop()


async def test_each_is_found_out_in_the_background(server: ScriptedLlm, other: ScriptedLlm) -> None:
    other.json_schema = False
    llms = llms_of(llm_url=server.url, llm_judge_url=other.url)
    other.die()
    with structlog.testing.capture_logs() as logs:
        llms.start()
        await until(lambda: len(llms.not_ready()) == 1)
        await until(lambda: "could not be reached" in llms.not_ready()[0])
        assert llms.not_ready()[0].startswith("the LLM (judge) has not answered yet: ")
        assert len(server.greeted) > 5
        await asyncio.sleep(1.2)
        other.come_back()
        await until(lambda: not llms.not_ready())
    status = {",".join(each["roles"]): each for each in llms.status()}
    assert status["answerer,generator"]["capabilities"]["json_schema"] is True
    assert status["judge"]["capabilities"]["json_schema"] is False
    assert status["judge"]["model"] == "scripted-1"
    assert [line["event"] for line in logs].count("the LLM has not answered yet") == 1, "once, not at every try"
    lacking = [line for line in logs if line["event"] == "the LLM lacks a capability"]
    assert [(line["roles"], line["log_level"]) for line in lacking] == [(["judge"], "warning")]
    assert "not held to a JSON schema" in lacking[0]["lacking"]
    assert server.url not in str(logs)
    other.die()
    assert llms.not_ready() == [], "a later outage is the gates' to answer for"
    await llms.stop()


async def test_a_generator_keeps_nobody_waiting(server: ScriptedLlm, other: ScriptedLlm) -> None:
    other.die()
    llms = llms_of(llm_url=server.url, llm_generator_url=other.url)
    llms.start()
    await until(lambda: not llms.not_ready())
    assert llms.generator.capabilities is None
    await llms.stop()


async def test_what_breaks_amid_finding_out_is_tried_again(
    server: ScriptedLlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [ZeroDivisionError()]

    async def greet(server: Server, model: str) -> None:
        if broken:
            raise broken.pop()

    monkeypatch.setattr("scopegate.llm.capabilities._greet", greet)
    llms = llms_of(llm_url=server.url)
    with structlog.testing.capture_logs() as logs:
        llms.start()
        await until(lambda: not llms.not_ready())
    assert [line["log_level"] for line in logs].count("error") == 1
    await llms.stop()


async def test_a_wrong_key_is_named_and_may_be_mended(server: ScriptedLlm) -> None:
    llms = llms_of(llm_url=server.url)
    server.greeting = in_turn(*[Said(status=401)] * 2, "Hello.")
    llms.start()
    await until(lambda: "status 401" in str(llms.not_ready()))
    await until(lambda: not llms.not_ready())
    await llms.stop()


async def test_a_stop_does_not_wait_for_a_server_that_hangs(server: ScriptedLlm) -> None:
    server.greeting = always(Said(after_s=float("inf")))
    llms = llms_of(llm_url=server.url)
    llms.start()
    await until(lambda: len(server.greeted) == 1)
    started = time.monotonic()
    await llms.stop()
    assert time.monotonic() - started < 1
    await until(lambda: server.greeted[0].gone_at is not None)
