"""Random probes, and what they say of a hidden state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from scopegate.probe_file import Description, Kind, Position, ProbeFile, Slots
from tests.engine.models import Model

WIDTH = 32


def described(model: Model, **changes: Any) -> Description:
    """What a probe that fits the model says of itself, but for the changes."""
    a, b, c = model.slots
    config = model.reference.config
    fitting: dict[str, Any] = {
        "name": "random",
        "kind": Kind.HIDDEN_STATE,
        "architecture": model.architecture,
        "model": "random",
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "prompt": "none@1",
        "temperature": 1.7,
        "threshold": 0.5,
        "position": Position.LAST_PROMPT_TOKEN,
        "slots": Slots(a, b, c),
    }
    return Description(**fitting | changes)


def make(path: Path, model: Model, *, seed: int = 0, **changes: Any) -> ProbeFile:
    """A probe of random weights that fits the model, but for the changes to its description."""
    description = described(model, name=path.stem, **changes)
    random = np.random.default_rng(seed)
    width = description.hidden_size * len(description.layers)
    tensors = {
        "mean": random.normal(0, 0.3, width),
        "scale": random.uniform(0.5, 2, width),
        "hidden": random.normal(0, width**-0.5, (WIDTH, width)),
        "hidden_bias": random.normal(0, 0.1, WIDTH),
        "output": random.normal(0, 1, WIDTH),
        "bias": random.normal(0, 0.1, 1),
    }
    save_file({name: tensor.astype(np.float32) for name, tensor in tensors.items()}, path, description.metadata())
    return ProbeFile.read(path)


def logit(file: ProbeFile, state: torch.Tensor) -> float:
    """The probe in float64. state: shape (d,)."""
    at = {name: tensor.astype(np.float64) for name, tensor in load_file(file.path).items()}
    hidden = at["hidden"] @ ((state.double().numpy() - at["mean"]) / at["scale"]) + at["hidden_bias"]
    return float((at["output"] @ np.maximum(hidden, 0) + at["bias"][0]) / file.description.temperature)
