"""Asks a service through LangChain's ChatOpenAI, and prints what it made of the answers.

python through_langchain.py BASE_URL KEY KNOWN UNKNOWN
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai
from langchain_openai import ChatOpenAI

url, key, known, unknown = sys.argv[1:]


def model(**fields: Any) -> ChatOpenAI:
    return ChatOpenAI(
        **{"model": "scopegate/default", "base_url": url, "api_key": key, "max_retries": 0, "timeout": 30} | fields
    )


def told(message: Any) -> dict[str, Any]:
    return {
        "content": message.content,
        "refusal": message.additional_kwargs.get("refusal"),
        "finish_reason": message.response_metadata["finish_reason"],
        "usage": message.usage_metadata,
    }


async def streamed(asked: Any) -> list[str]:
    return [chunk.content async for chunk in model(stream_usage=True).astream(asked) if chunk.content]


def failure(asked: ChatOpenAI) -> int | None:
    try:
        asked.invoke(known)
    except openai.APIStatusError as error:
        return error.status_code
    return None


conversation = [("system", "Be brief."), ("human", unknown), ("ai", "I do not know."), ("human", known)]
chunks = list(model(stream_usage=True).stream(known))
whole = chunks[0]
for chunk in chunks[1:]:
    whole += chunk
print(
    json.dumps(
        {
            "answer": told(model(temperature=0.2, max_tokens=200).invoke(known)),
            "refusal": told(model().invoke(unknown)),
            "conversation": told(model().invoke(conversation)),
            "by_scope": told(model(model="gpt-4o", extra_body={"scope": "default"}).invoke(known)),
            "stream": {"pieces": len([chunk for chunk in chunks if chunk.content]), **told(whole)},
            "refusal_stream": asyncio.run(streamed(unknown)),
            "unknown_scope": failure(model(model="scopegate/nowhere")),
            "wrong_key": failure(model(api_key="nobody")),
        }
    )
)
