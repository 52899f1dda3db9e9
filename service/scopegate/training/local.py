"""Hidden states through transformers, on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from scopegate.domain import Invalid
from scopegate.training.backbone import Backbone
from scopegate.training.hidden_states import Batch, batches

# Padded tokens a batch: enough to keep the device busy, few enough for an 8B model's activations.
GPU_TOKENS = 16_384
CPU_TOKENS = 2_048


class LocalReader:
    """A model in this process, loaded when the first prompt is read.

    dtype: None for bfloat16 on a GPU and float32 on a CPU.
    """

    def __init__(self, backbone: Backbone, dtype: torch.dtype | None = None) -> None:
        self._backbone = backbone
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype = dtype or (torch.bfloat16 if self._device.type == "cuda" else torch.float32)
        self._model: Any = None
        self.fingerprint = f"transformers:{self._dtype}"

    def read(self, prompts: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """See Reader."""
        if self._model is None:
            self._model = self._load()
        planned = batches([len(ids) for ids in prompts], GPU_TOKENS if self._device.type == "cuda" else CPU_TOKENS)
        for rows in planned:
            states = last_states(self._model, [prompts[row] for row in rows])
            yield rows, states.float().cpu().numpy()

    def _load(self) -> Any:
        backbone = self._backbone
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                backbone.model, revision=backbone.asked_revision, dtype=self._dtype
            )
        except (OSError, ValueError) as error:
            raise Invalid(f"the model {backbone.model} cannot be loaded: {str(error).splitlines()[0]}") from error
        return model.base_model.to(self._device).eval()


@torch.inference_mode()
def last_states(model: Any, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """The final hidden state of each prompt's last token, shape (len(prompts), d).

    Padding stands on the right, where a causal model's tokens never look, so no mask is needed; without one, attention
    takes its fastest path.
    """
    longest = max(map(len, prompts))
    ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=model.device)
    ends = torch.tensor([len(prompt) - 1 for prompt in prompts], device=model.device)
    states: torch.Tensor = model(ids, use_cache=False).last_hidden_state
    return states[torch.arange(len(prompts), device=model.device), ends]
