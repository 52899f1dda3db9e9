"""The probe of a model whose weights and vocabulary are split over two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine import models
from tests.engine.served import serve


async def test_equals_the_probe_on_transformers_hidden_states(llama: models.Model, tmp_path: Path) -> None:
    options = ("--tensor-parallel-size", "2")
    # Left to itself, vLLM gives each rank a memory node of its own, and most machines have one.
    with serve(llama, tmp_path / "probe.safetensors", "eos", *options, VLLM_CPU_OMP_THREADS_BIND="nobind") as served:
        assert "(Worker_TP1 pid=" in served.engine.log.read_text()
        async with served.client() as client:
            for words in (3, 150):
                for endpoint, prompt, ids in served.prompts("ferry " * words):
                    reply = await served.ask(client, endpoint, **prompt, **served.probe(endpoint), max_tokens=1)
                    assert reply.logprobs is not None
                    assert served.file.logit(reply.logprobs) == pytest.approx(served.expected(ids), abs=1e-3)
