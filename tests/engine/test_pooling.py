"""Hidden states from a real pooling server, against transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scopegate.domain import Evidence, Invalid
from scopegate.gate.retrieval import Case
from scopegate.probe_file import Position
from scopegate.prompts import load_prompt
from scopegate.training.backbone import Backbone
from scopegate.training.hidden_states import HiddenStates
from scopegate.training.local import LocalReader
from scopegate.training.pooling import PoolingReader
from scopegate.training.vectors import VectorCache
from tests.engine import models
from tests.engine.engine import Engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Path]]:
    folder = models.make(tmp_path_factory.mktemp("pooled"), "llama").path
    with Engine(folder, None, "--runner", "pooling", "--convert", "embed") as engine:
        yield engine, folder


def case(number: int) -> Case:
    text = "The night ferry leaves from pier 4. " * (number % 9)
    evidence = (Evidence("1", text, 1.0, 0.5, 0.5, None),)
    return Case(f"Does ferry {number} leave?", evidence, evidence, lambda word: 1.0, None)


@pytest.mark.parametrize("position", list(Position))
async def test_pooled_states_are_those_of_transformers(
    engine: tuple[Engine, Path], tmp_path: Path, position: Position
) -> None:
    server, folder = engine
    backbone = Backbone(str(folder), position)
    cases = [case(number) for number in range(100)]
    prompt = load_prompt("answerable")
    cache = VectorCache(tmp_path / "vectors.db")
    before = server.metrics()["vllm:prompt_tokens_total"]
    pooled = await HiddenStates(backbone, prompt, PoolingReader(server.url), cache).of(cases)
    computed = server.metrics()["vllm:prompt_tokens_total"]
    again = await HiddenStates(backbone, prompt, PoolingReader(server.url), cache).of(cases)
    assert computed > before
    assert server.metrics()["vllm:prompt_tokens_total"] == computed
    assert np.array_equal(pooled, again)
    local = await HiddenStates(backbone, prompt, LocalReader(backbone), VectorCache(tmp_path / "other.db")).of(cases)
    assert np.abs(pooled - local).max() < 1e-3


def test_a_server_that_is_away_is_told_in_a_sentence() -> None:
    with pytest.raises(Invalid, match=r"http://127.0.0.1:9 cannot be asked"):
        PoolingReader("http://127.0.0.1:9")
