"""vLLM's models with a probe at the LM head."""

from __future__ import annotations

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import linear, relu
from vllm.config import VllmConfig
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.mistral import MistralForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

from scopegate.probe_file import FLOOR, MOST, TENSORS, ProbeFile
from scopegate.vllm_plugin import configured
from scopegate.vllm_plugin.fit import check


class Probe(nn.Module):
    """The two-layer probe. Its tensors are buffers that no checkpoint holds: they come from the probe's own file."""

    mean: Tensor
    scale: Tensor
    hidden: Tensor
    hidden_bias: Tensor
    output: Tensor
    bias: Tensor

    def __init__(self, file: ProbeFile, device: torch.device) -> None:
        super().__init__()
        self.file = file
        tensors = load_file(file.path)
        for name in TENSORS:
            self.register_buffer(name, tensors[name].to(device), persistent=False)

    def forward(self, states: Tensor) -> Tensor:
        """states: shape (n, d), any float type. Returns logits of shape (n,), float32."""
        features = (states.float() - self.mean) / self.scale
        hidden = relu(linear(features, self.hidden, self.hidden_bias))
        return (hidden @ self.output + self.bias) / self.file.description.temperature


class Probed(nn.Module):
    """Mixed in before a model of vLLM: its logits carry the probe's in the slots.

    Raises ValueError where the probe does not fit; checked in every worker again, since a worker's environment may be
    another than that of the process that made the configuration.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        file = configured()
        if file is None:
            raise ValueError("the probe was set where the engine was started, but is not here")
        check(file, vllm_config)
        self.probe = Probe(file, vllm_config.device_config.device)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """hidden_states: shape (n, d), what the LM head reads. Returns logits of shape (n, vocabulary), float32.

        None where the logits are gathered on another rank.
        """
        logits: Tensor | None = super().compute_logits(hidden_states)  # type: ignore[misc]
        if logits is None:
            return None
        logits = logits.float()
        a, b, c = self.probe.file.slots
        floor = logits.amax(dim=-1) - FLOOR
        logits[:, a] = floor + self.probe(hidden_states).clamp(-MOST, MOST)
        logits[:, b] = floor
        logits[:, c] = floor + self.probe.file.fingerprint
        return logits

    def compute_logits_local(self, hidden_states: Tensor) -> Tensor:
        """Raises always: a share of the vocabulary has no room for the slots."""
        raise RuntimeError("scopegate's probe cannot be read with batch-sharded sampling")


class ProbedLlama(Probed, LlamaForCausalLM):
    """Llama with a probe."""


class ProbedMistral(Probed, MistralForCausalLM):
    """Mistral with a probe."""


class ProbedQwen2(Probed, Qwen2ForCausalLM):
    """Qwen2 with a probe."""


class ProbedQwen3(Probed, Qwen3ForCausalLM):
    """Qwen3 with a probe."""
