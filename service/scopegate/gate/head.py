"""A probe's two layers, as its file holds them, in numpy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from scopegate.probe_file import ProbeFile


class Head:
    """Features in, calibrated logits out (ELOQ, section 4.2)."""

    def __init__(self, tensors: Mapping[str, NDArray[np.float32]], temperature: float) -> None:
        """tensors: as probe_file names them."""
        self._mean, self._scale = tensors["mean"], tensors["scale"]
        self._hidden, self._hidden_bias = tensors["hidden"], tensors["hidden_bias"]
        self._output, self._bias = tensors["output"], tensors["bias"]
        self._temperature = np.float32(temperature)

    @classmethod
    def load(cls, file: ProbeFile) -> Head:
        """That of a probe."""
        return cls(load_file(file.path), file.description.temperature)

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """features: shape (n, d). Returns shape (n,)."""
        standard = (features - self._mean) / self._scale
        hidden = np.maximum(standard @ self._hidden.T + self._hidden_bias, 0.0)
        logits: NDArray[np.float32] = (hidden @ self._output + self._bias) / self._temperature
        return logits


def probability(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """P(in scope) = 1 / (1 + exp(-s)), of the same shape."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logits.astype(np.float64), -50.0, 50.0))))
