"""The probe's network: two layers, trained as in ELOQ, appendix C."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

# Features that do not vary are left alone rather than divided by next to nothing.
_LEAST_DEVIATION = 1e-6


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a network is trained. hidden: units of the first layer. dropout: after it, 0 to 1."""

    hidden: int = 256
    dropout: float = 0.1
    learning_rate: float = 1e-4
    epochs: int = 10
    batch_size: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Fitted:
    """tensors: as probe_file names them. epoch: the one that was kept, from 1. losses: on validation, by epoch."""

    tensors: dict[str, NDArray[np.float32]]
    epoch: int
    losses: tuple[float, ...]


class _Network(nn.Module):
    def __init__(self, mean: torch.Tensor, scale: torch.Tensor, recipe: Recipe) -> None:
        super().__init__()
        self.mean = nn.Buffer(mean)
        self.scale = nn.Buffer(scale)
        self.hidden = nn.Linear(len(mean), recipe.hidden)
        self.dropout = nn.Dropout(recipe.dropout)
        self.output = nn.Linear(recipe.hidden, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        standard = (features - self.mean) / self.scale
        logits: torch.Tensor = self.output(self.dropout(torch.relu(self.hidden(standard))))
        return logits.squeeze(-1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Steps this small gain nothing from several threads, and on a busy machine lose much."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def fit(
    features: NDArray[np.float32],
    answerable: NDArray[np.bool_],
    validation: tuple[NDArray[np.float32], NDArray[np.bool_]],
    recipe: Recipe,
) -> Fitted:
    """Trains on features of shape (n, d) and keeps the epoch with the least loss on validation."""
    inputs, labels = torch.from_numpy(features), torch.from_numpy(answerable).float()
    held_inputs, held_labels = torch.from_numpy(validation[0]), torch.from_numpy(validation[1]).float()
    generator = torch.Generator().manual_seed(recipe.seed)
    with _one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        deviation = inputs.std(0, correction=0)
        # Times the root of d, so that inputs have about unit length whatever their number: with thousands of features
        # of unit deviation, the first epoch already learns the training part by heart.
        scale = torch.where(deviation > _LEAST_DEVIATION, deviation, 1.0) * inputs.shape[1] ** 0.5
        network = _Network(inputs.mean(0), scale, recipe)
        optimizer = torch.optim.Adam(network.parameters(), lr=recipe.learning_rate)
        loss_of = nn.functional.binary_cross_entropy_with_logits
        losses: list[float] = []
        best = network.state_dict()
        for _ in range(recipe.epochs):
            network.train()
            for rows in torch.split(torch.randperm(len(inputs), generator=generator), recipe.batch_size):
                optimizer.zero_grad()
                torch.autograd.backward(loss_of(network(inputs[rows]), labels[rows]))
                optimizer.step()
            network.eval()
            with torch.inference_mode():
                loss = loss_of(network(held_inputs), held_labels).item()
            if not losses or loss < min(losses):
                best = copy.deepcopy(network.state_dict())
            losses.append(loss)
    return Fitted(
        {
            "mean": best["mean"].numpy(),
            "scale": best["scale"].numpy(),
            "hidden": best["hidden.weight"].numpy(),
            "hidden_bias": best["hidden.bias"].numpy(),
            "output": best["output.weight"].numpy()[0],
            "bias": best["output.bias"].numpy(),
        },
        int(np.argmin(losses)) + 1,
        tuple(losses),
    )
