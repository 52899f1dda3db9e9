"""Engines that are shared by the tests of a module, since each takes half a minute to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine import models
from tests.engine.served import Served, serve


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> models.Model:
    """A tiny Llama, not served."""
    return models.make(tmp_path_factory.mktemp("llama") / "model", "llama")


# Each family with its own position, scale of logits and way of scheduling, so that four engines cover them all.
ENGINES = {
    "llama": (1.0, "last_prompt_token", ("--max-num-batched-tokens", "64", "--max-num-seqs", "64")),
    "mistral": (0.01, "unused_token", ()),
    "qwen2": (1.0, "last_prompt_token", ()),
    "qwen3": (100.0, "eos", ()),
}


@pytest.fixture(scope="module", params=ENGINES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A served model with its probe."""
    scale, position, options = ENGINES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    model = models.make(folder / "model", request.param, scale=scale)
    options += ("--logits-processors", "tests.engine.hot:Hot")
    with serve(model, folder / "probe.safetensors", position, *options) as served:
        yield served
