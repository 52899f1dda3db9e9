from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from scopegate.domain import Invalid, Passage
from scopegate.gate.retrieval import Retriever
from scopegate.gate.sentence_pair import SentencePairProbe, joined
from scopegate.inference.embedder import Embedder
from scopegate.probe_file import Description, Kind
from scopegate.settings import Settings, models_dir

PASSAGE = "The night ferry leaves from pier 4. It takes seven hours. Bicycles travel free. Dogs do not."
QUESTION = "From which pier does the ferry leave?"


def write(path: Path, embedder: Embedder, **changes: Any) -> dict[str, NDArray[np.float32]]:
    described: dict[str, Any] = {
        "name": "pair",
        "kind": Kind.SENTENCE_PAIR,
        "architecture": embedder.fingerprint,
        "model": "minilm",
        "hidden_size": embedder.dimension,
        "prompt": "",
        "temperature": 2.0,
        "threshold": 0.4,
        "depth": 3,
    }
    random = np.random.default_rng(0)
    width = 3 * embedder.dimension
    tensors: dict[str, NDArray[np.float32]] = {
        "mean": random.normal(0, 0.1, width).astype(np.float32),
        "scale": random.uniform(0.5, 2, width).astype(np.float32),
        "hidden": random.normal(0, 1, (8, width)).astype(np.float32),
        "hidden_bias": random.normal(0, 1, 8).astype(np.float32),
        "output": random.normal(0, 1, 8).astype(np.float32),
        "bias": np.array([0.25], np.float32),
    }
    save_file(tensors, path, Description(**described | changes).metadata())
    return tensors


async def test_judges_the_question_and_the_best_evidence_joined(tmp_path: Path, embedder: Embedder) -> None:
    file = tmp_path / "pair.safetensors"
    tensors = {name: tensor.astype(float) for name, tensor in write(file, embedder).items()}
    probe = SentencePairProbe.load(file, embedder)
    assert (probe.name, probe.threshold, probe.depth) == ("pair", 0.4, 3)
    case = await Retriever(embedder, Settings()).from_passages(QUESTION, [Passage("1", PASSAGE)], 4)
    assert len(case.evidence) == 4
    best = joined(case.evidence[:3])
    assert best.startswith("The night ferry leaves from pier 4. ")
    u, v = (await embedder.embed([QUESTION, best])).astype(float)
    hidden = tensors["hidden"] @ ((np.concatenate([u, v, abs(u - v)]) - tensors["mean"]) / tensors["scale"])
    logit = (tensors["output"] @ np.maximum(hidden + tensors["hidden_bias"], 0) + 0.25) / 2.0
    assert (await probe.judge(case)).score == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-5)


async def test_where_nothing_is_known_nothing_is_in_scope(tmp_path: Path, embedder: Embedder) -> None:
    write(tmp_path / "pair.safetensors", embedder)
    case = await Retriever(embedder, Settings()).from_passages(QUESTION, [], 4)
    assert (await SentencePairProbe.load(tmp_path / "pair.safetensors", embedder).judge(case)).score == 0.0


def test_a_probe_of_another_embedder_is_refused(tmp_path: Path, embedder: Embedder) -> None:
    write(tmp_path / "pair.safetensors", embedder, architecture="other@123")
    with pytest.raises(Invalid, match="trained on the embedder other@123, and this service runs minilm"):
        SentencePairProbe.load(tmp_path / "pair.safetensors", embedder)


def test_a_file_that_is_no_such_probe_is_refused(tmp_path: Path, embedder: Embedder) -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        SentencePairProbe.load(tmp_path / "missing.safetensors", embedder)
    (tmp_path / "cut.safetensors").write_bytes(b"cut")
    with pytest.raises(Invalid, match="cannot be read"):
        SentencePairProbe.load(tmp_path / "cut.safetensors", embedder)


async def test_the_shipped_probe_fits_the_shipped_embedder(embedder: Embedder) -> None:
    probe = SentencePairProbe.load(models_dir() / "sentence-pair-probe" / "probe.safetensors", embedder)
    retriever = Retriever(embedder, Settings())
    scores = [
        (await probe.judge(await retriever.from_passages(question, [Passage("1", PASSAGE)], probe.depth))).score
        for question in (QUESTION, "What does a litre of milk cost in Sweden?")
    ]
    assert scores[0] > scores[1] + 0.2
