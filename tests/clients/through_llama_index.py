"""Asks a service through LlamaIndex's OpenAILike, and prints what it made of the answers.

python through_llama_index.py BASE_URL KEY KNOWN UNKNOWN
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

url, key, known, unknown = sys.argv[1:]


def model(**fields: Any) -> OpenAILike:
    settings = {"model": "scopegate/default", "api_base": url, "api_key": key, "is_chat_model": True}
    return OpenAILike(**settings | {"max_retries": 0, "timeout": 30} | fields)


def asked(question: str) -> list[ChatMessage]:
    return [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=question)]


def told(response: Any) -> dict[str, Any]:
    raw = response.raw if isinstance(response.raw, dict) else response.raw.model_dump()
    return {
        "content": response.message.content,
        "decision": (raw.get("scopegate") or {}).get("decision"),
        "usage": raw.get("usage"),
    }


async def streamed(question: str) -> list[str]:
    return [event.delta async for event in await model().astream_chat(asked(question)) if event.delta]


def failure(asked_of: OpenAILike) -> int | None:
    try:
        asked_of.chat(asked(known))
    except openai.APIStatusError as error:
        return error.status_code
    return None


print(
    json.dumps(
        {
            "answer": told(model(temperature=0.2, max_tokens=200).chat(asked(known))),
            "refusal": told(model().chat(asked(unknown))),
            "by_scope": told(
                model(model="gpt-4o", additional_kwargs={"extra_body": {"scope": "default"}}).chat(asked(known))
            ),
            "complete": model().complete(known).text,
            "stream": [event.delta for event in model().stream_chat(asked(known)) if event.delta],
            "refusal_stream": asyncio.run(streamed(unknown)),
            "unknown_scope": failure(model(model="scopegate/nowhere")),
            "wrong_key": failure(model(api_key="nobody")),
        }
    )
)
