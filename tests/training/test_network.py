from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from scopegate.gate.head import Head, probability
from scopegate.probe_file import Description, Kind, ProbeFile
from scopegate.training import calibration
from scopegate.training.metrics import measure
from scopegate.training.network import Fitted, Recipe, _Network, fit

QUICK = Recipe(hidden=16, learning_rate=1e-2, epochs=5, batch_size=32)


def rings(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Points inside and outside of a ring, far from the origin and on unlike scales: no line divides them."""
    random = np.random.default_rng(seed)
    inside = random.random(count) < 0.5
    angle, radius = random.uniform(0, 2 * np.pi, count), np.where(inside, 1.0, 2.5) + random.normal(0, 0.2, count)
    points = np.stack([1e3 + 1e2 * radius * np.cos(angle), 1e-3 * radius * np.sin(angle), np.ones(count)], axis=1)
    return points.astype(np.float32), inside


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fit(*rings(2000, 0), rings(500, 1), QUICK)


def test_what_can_be_told_apart_is_learnt(fitted: Fitted) -> None:
    points, inside = rings(1000, 2)
    metrics = measure(probability(Head(fitted.tensors, 1.0).logits(points)), inside, 0.5)
    assert metrics.accuracy > 0.97
    assert metrics.auroc is not None
    assert metrics.auroc > 0.99


def test_the_best_epoch_is_kept() -> None:
    random = np.random.default_rng(0)
    noise = random.normal(size=(60, 50)).astype(np.float32), random.random(60) < 0.5
    held = random.normal(size=(400, 50)).astype(np.float32), random.random(400) < 0.5
    fitted = fit(*noise, held, Recipe(hidden=64, dropout=0, learning_rate=1e-2, epochs=8, seed=3))
    losses = fitted.losses
    assert losses[-1] > 1.5 * min(losses)  # it does go on to learn the noise by heart
    assert fitted.epoch == losses.index(min(losses)) + 1
    assert calibration.log_loss(Head(fitted.tensors, 1.0).logits(held[0]), held[1]) == pytest.approx(min(losses), 1e-4)


def test_a_seed_gives_one_result(fitted: Fitted) -> None:
    again = fit(*rings(2000, 0), rings(500, 1), QUICK)
    other = fit(*rings(2000, 0), rings(500, 1), Recipe(16, 0.1, 1e-2, 5, 32, seed=1))
    assert all(np.array_equal(again.tensors[name], tensor) for name, tensor in fitted.tensors.items())
    assert not np.array_equal(other.tensors["hidden"], fitted.tensors["hidden"])


def test_numpy_gives_what_torch_gives_through_the_file(fitted: Fitted, tmp_path: Path) -> None:
    path = tmp_path / "probe.safetensors"
    description = Description(
        "rings", Kind.SENTENCE_PAIR, "none", "none", hidden_size=1, prompt="", temperature=1.5, threshold=0.5
    )
    save_file(fitted.tensors, path, description.metadata())
    file = ProbeFile.read(path)
    assert file.description == description
    network = _Network(torch.zeros(3), torch.ones(3), QUICK).eval()
    names = {"hidden": "hidden.weight", "hidden_bias": "hidden.bias", "output": "output.weight", "bias": "output.bias"}
    state = {names.get(name, name): torch.from_numpy(tensor) for name, tensor in fitted.tensors.items()}
    network.load_state_dict(state | {"output.weight": state["output.weight"][None]})
    points, _ = rings(100, 4)
    with torch.inference_mode():
        theirs = network(torch.from_numpy(points)).numpy() / 1.5
    assert np.abs(Head.load(file).logits(points) - theirs).max() < 1e-4


def test_temperature_mends_overconfidence() -> None:
    random = np.random.default_rng(0)
    true_logits = random.normal(0, 1.5, 5000)
    answerable = random.random(5000) < 1 / (1 + np.exp(-true_logits))
    for factor in (4.0, 0.25):
        shown = true_logits * factor
        found = calibration.temperature(shown, answerable)
        assert found == pytest.approx(factor, rel=0.1)
        assert calibration.log_loss(shown / found, answerable) < calibration.log_loss(shown, answerable) - 0.02
        before, after = (measure(probability(logits), answerable, 0.5).ece for logits in (shown, shown / found))
        assert after < before / 3


@pytest.mark.parametrize("share", [0.0, 0.1, 1 / 3, 0.5, 0.99, 1.0])
def test_a_threshold_keeps_its_share_and_refuses_no_more_than_it_must(share: float) -> None:
    random = np.random.default_rng(1)
    answerable = random.random(600) < 0.5
    scores = np.round(np.clip(random.normal(0.4 + 0.2 * answerable, 0.2), 0, 1), 2)  # with many ties
    chosen = calibration.threshold(scores, answerable, share)
    passed = scores[~answerable] >= chosen
    assert passed.mean() <= share
    lower = scores[scores < chosen]
    if lower.size:
        assert (scores[~answerable] >= lower.max()).mean() > share


def test_metrics_are_those_of_a_case_done_by_hand() -> None:
    scores = np.array([0.95, 0.85, 0.35, 0.65, 0.15])
    answerable = np.array([True, True, True, False, False])
    metrics = measure(scores, answerable, 0.5)
    assert (metrics.questions, metrics.answerable) == (5, 3)
    assert metrics.accuracy == pytest.approx(3 / 5)
    assert metrics.f1 == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert metrics.auroc == pytest.approx(5 / 6)
    assert metrics.ece == pytest.approx((0.05 + 0.15 + 0.65 + 0.65 + 0.15) / 5)
    assert metrics.answerable_refused == pytest.approx(1 / 3)
    assert metrics.wrongly_answered == pytest.approx(1 / 2)
    one_kind = measure(scores[:3], answerable[:3], 0.5)
    assert (one_kind.auroc, one_kind.wrongly_answered) == (None, None)
