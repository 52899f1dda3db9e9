"""A scripted LLM that answers at once: OpenAI's protocol with replies made beforehand, as a process of its own.

python -m benchmarks.instant_llm PORT
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

MODEL = "instant"
REPLY = (
    "EVIDENCE: 1\nCAN ANSWER: yes\n"
    "ANSWER: It was built by the person whom the first passage names, in the year that it gives [1].\n"
    "REASON: The passage says so."
)
TOKENS = re.findall(r"\s*\S+", REPLY)

_HEAD = {"id": "chatcmpl-1", "created": 1, "model": MODEL}
_USAGE = {"prompt_tokens": 300, "completion_tokens": len(TOKENS), "total_tokens": 300 + len(TOKENS)}


def _chunk(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}


_CHUNKS = [
    _chunk({"role": "assistant", "content": ""}),
    *(_chunk({"content": token}) for token in TOKENS),
    _chunk({}, "stop"),
    {**_HEAD, "object": "chat.completion.chunk", "choices": [], "usage": _USAGE},
]
_MESSAGE = {"role": "assistant", "content": REPLY}
_WHOLE = {
    **_HEAD,
    "object": "chat.completion",
    "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}],
    "usage": _USAGE,
}

_JSON = json.dumps(_WHOLE).encode()
_STREAM = b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in _CHUNKS) + b"data: [DONE]\n\n"
_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers everything at once; a stream is a chunk a token, all in one write."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    if scope["path"].endswith("/models"):
        answer, kind = _MODELS, b"application/json"
    elif b'"stream":true' in body:
        answer, kind = _STREAM, b"text/event-stream"
    else:
        answer, kind = _JSON, b"application/json"
    headers = [(b"content-type", kind), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


@contextmanager
def answering() -> Iterator[str]:
    """The LLM, running; its base URL. Stopped at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1"
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.instant_llm", str(port)])
    try:
        while True:
            try:
                httpx.get(f"{url}/models").raise_for_status()
                break
            except httpx.TransportError:
                if process.poll() is not None:
                    raise RuntimeError("the scripted LLM did not start") from None
                time.sleep(0.05)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), interface="asgi3", lifespan="off", log_level="error", access_log=False)
