"""The official client, pointed at a running service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.clients.conftest import ANSWER, KEY, KNOWN, REPLY, UNKNOWN
from tests.conftest import FERRIES
from tests.scripted import Said, ScriptedLlm, always, until

MODEL = "scopegate/default"


def asking(question: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]


@pytest.fixture
def client(base_url: str, llm: ScriptedLlm) -> Iterator[openai.OpenAI]:
    llm.begin_again(always(REPLY))
    with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0, timeout=30) as client:
        yield client


def scopegate(body: Any) -> dict[str, Any]:
    assert body.model_extra is not None
    told: dict[str, Any] = body.model_extra["scopegate"]
    return told


def test_an_answer(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(model=MODEL, messages=asking(KNOWN), temperature=0.1, n=1)
    (choice,) = completion.choices
    assert (choice.message.role, choice.message.content, choice.message.refusal) == ("assistant", ANSWER, None)
    assert (choice.finish_reason, completion.model) == ("stop", MODEL)
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    assert [evidence["text"] for evidence in scopegate(completion)["evidence"]] == [FERRIES[0]["text"]]


def test_a_refusal(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model="gpt-4o", messages=asking(UNKNOWN), extra_body={"scope": "default"}
    )
    message = completion.choices[0].message
    assert message.refusal
    assert message.content == message.refusal
    assert scopegate(completion)["verdict"]["refused_by"] == "hard"


def test_a_stream(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    with client.chat.completions.create(
        model=MODEL, messages=asking(KNOWN), stream=True, stream_options=options
    ) as stream:
        *before, usage = list(stream)
    assert usage.usage is not None
    assert usage.usage.total_tokens > 100
    assert before[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in before) == ANSWER
    assert before[-1].choices[0].finish_reason == "stop"
    assert scopegate(before[-1])["decision"] == "ANSWER"


@pytest.mark.parametrize(("question", "refused"), [(KNOWN, False), (UNKNOWN, True)])
def test_the_client_s_own_way_to_add_up_a_stream(client: openai.OpenAI, question: str, refused: bool) -> None:
    with client.chat.completions.stream(model=MODEL, messages=asking(question)) as stream:
        events = {event.type for event in stream}
        completion = stream.get_final_completion()
    message = completion.choices[0].message
    assert ("refusal.done" in events) is refused
    assert message.refusal == (message.content if refused else None)
    assert refused or message.content == ANSWER


async def test_the_async_client(base_url: str, llm: ScriptedLlm) -> None:
    llm.begin_again(always(REPLY))
    async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0, timeout=30) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=asking(KNOWN), stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == ANSWER
        assert [model.id async for model in client.models.list()] == [MODEL]


def test_leaving_a_stream_cancels_it(client: openai.OpenAI, llm: ScriptedLlm) -> None:
    llm.script = always(Said(REPLY.split("\nREASON")[0] + " More of it." * 200, drip_s=0.02))
    with client.chat.completions.create(model=MODEL, messages=asking(KNOWN), stream=True) as stream:
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break
    until(lambda: llm.asked[0].gone_at is not None)


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"model": "scopegate/nowhere"}, openai.NotFoundError, "model_not_found"),
        ({"messages": []}, openai.BadRequestError, "invalid"),
        ({"extra_body": {"scopegate": {"policy": {"alpha": 4}}}}, openai.PermissionDeniedError, "forbidden"),
        ({"extra_headers": {"Authorization": "Bearer nobody"}}, openai.AuthenticationError, "invalid_api_key"),
        ({"extra_body": {"scopegate": {"min_revision": 99, "deadline_ms": 50}}}, openai.APIStatusError, "unavailable"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_client_s_own(
    client: openai.OpenAI, fields: dict[str, Any], error: type[openai.APIStatusError], code: str, stream: bool
) -> None:
    request: dict[str, Any] = {"model": MODEL, "messages": asking(KNOWN), "stream": stream} | fields
    with pytest.raises(error) as raised:
        client.chat.completions.create(**request)
    assert raised.value.code == code
    assert raised.value.request_id


def test_a_stream_that_breaks_off_raises(client: openai.OpenAI, llm: ScriptedLlm) -> None:
    llm.script = always(Said(REPLY, stops_after=12))
    said: list[str] = []
    with (
        client.chat.completions.create(model=MODEL, messages=asking(KNOWN), stream=True) as stream,
        pytest.raises(openai.APIError, match="broke off"),
    ):
        said.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert "".join(said)
    assert ANSWER.startswith("".join(said))
