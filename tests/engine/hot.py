"""Runs inside vLLM, by its option --logits-processors: temperature 2, the most one may ask for, becomes 20."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor


class Hot(LogitsProcessor):  # type: ignore[misc]
    """Logits to sample from are divided by 10; the logprobs that are returned are taken before."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        return logits.div_(10)

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: Any) -> None: ...
