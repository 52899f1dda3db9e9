"""Hidden states from a vLLM server: `vllm serve MODEL --runner pooling --convert embed`."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
from numpy.typing import NDArray

from scopegate.domain import Invalid
from scopegate.training.hidden_states import Batch, batches

# Tokens a request, and requests at a time: while one is packed and sent, the engine has others.
_TOKENS = 16_384
_REQUESTS = 4
_TIMEOUT_S = 600
# A state whose length is 1 to within this was normalised on the way.
_UNIT = 1e-3


class PoolingReader:
    """The states that a server gives. url: its root, without /v1. Raises Invalid where it is no such server."""

    def __init__(self, url: str) -> None:
        self._url = url
        with self._client() as client:
            served = self._json(client, "GET", "/v1/models")["data"]
        self._model: str = served[0]["id"]
        self.fingerprint = f"vllm:{served[0].get('root')}"

    def read(self, prompts: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """See Reader."""
        planned = batches([len(ids) for ids in prompts], _TOKENS)
        with self._client() as client, ThreadPoolExecutor(_REQUESTS) as pool:
            states = pool.map(lambda rows: self._states(client, [prompts[row] for row in rows]), planned)
            yield from zip(planned, states, strict=True)

    def _client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self._url, timeout=_TIMEOUT_S)

    def _states(self, client: httpx2.Client, prompts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        asked = {
            "model": self._model,
            "input": [list(prompt) for prompt in prompts],
            "add_special_tokens": False,
            "use_activation": False,
            "encoding_format": "base64",
            "embed_dtype": "float32",
            "endianness": "little",
        }
        data = sorted(self._json(client, "POST", "/v1/embeddings", json=asked)["data"], key=lambda item: item["index"])
        states = np.stack([np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in data])
        if len(states) != len(prompts):
            raise Invalid(f"the server {self._url} gave {len(states)} states for {len(prompts)} prompts")
        if np.all(np.abs(np.linalg.norm(states, axis=1) - 1) < _UNIT):
            raise Invalid(f"the server {self._url} normalises its states, which a probe cannot use")
        return states

    def _json(self, client: httpx2.Client, method: str, path: str, json: object = None) -> Any:
        try:
            answer = client.request(method, path, json=json)
            answer.raise_for_status()
            return answer.json()
        except httpx2.HTTPStatusError as error:
            raise Invalid(
                f"the server {self._url} answered {path} with {error.response.status_code}; "
                "it must be vLLM with --runner pooling --convert embed"
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise Invalid(f"the server {self._url} cannot be asked: {error}") from error
