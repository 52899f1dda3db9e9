"""Small random models of the families that can be probed, made on the spot, and their Hugging Face twins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from scopegate.domain import Turn
from scopegate.probe_file import Position

BEGIN, END, UNUSED = "<|begin_of_text|>", "<|eot_id|>", "<|reserved_special_token_0|>"
NAMED = [f"<|reserved_special_token_{number}|>" for number in (1, 2, 3)]  # slots that a grammar can name
SPARE = 5  # ids beyond the tokenizer's: room for the slots
FAMILIES: dict[str, tuple[type[Any], type[PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
TINY = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 32}
# About 100 million parameters, so that the engine and not HTTP is what a benchmark measures.
LARGE = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 14, "num_attention_heads": 12}

_CHAT = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_TEXTS = ["Read the passages about the night ferry to Harwick, then answer the question from what they say."] * 50


@dataclass(frozen=True)
class Model:
    """A model on disk. reference: the same in transformers, float32."""

    path: Path

    @cached_property
    def reference(self) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32)

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.path)

    @property
    def architecture(self) -> str:
        return str(self.reference.config.architectures[0])

    @property
    def slots(self) -> tuple[int, int, int]:
        """The last three ids."""
        size = self.reference.config.vocab_size
        return size - 3, size - 2, size - 1

    def prompt(self, text: str, position: Position = Position.LAST_PROMPT_TOKEN) -> list[int]:
        """text's ids, with the token that the position asks for after them."""
        after = {Position.UNUSED_TOKEN: [UNUSED], Position.EOS: [END]}.get(position, [])
        return [*self.tokenizer(text)["input_ids"], *self.tokenizer.convert_tokens_to_ids(after)]

    def chat(self, *turns: Turn) -> list[int]:
        """The ids of a conversation that goes on with a reply."""
        said = [{"role": str(turn.role), "content": turn.content} for turn in turns]
        rendered = self.tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
        return list(self.tokenizer(rendered, add_special_tokens=False)["input_ids"])

    @torch.inference_mode()
    def state(self, ids: list[int]) -> torch.Tensor:
        """The last token's final hidden state, shape (d,)."""
        states: torch.Tensor = self.reference.model(torch.tensor([ids])).last_hidden_state[0, -1]
        return states


def make(
    folder: Path,
    family: str,
    *,
    scale: float = 1.0,
    shape: dict[str, int] = TINY,
    seed: int = 0,
    texts: Sequence[str] = _TEXTS,
) -> Model:
    """A model with random weights.

    scale: the LM head's weights, and so the logits, are multiplied by it. texts: what its tokenizer is trained on.
    """
    tokenizer = _tokenizer(texts)
    tokenizer.save_pretrained(folder)
    config, architecture = FAMILIES[family]
    torch.manual_seed(seed)
    model: Any = architecture(
        config(
            vocab_size=len(tokenizer) + SPARE,
            num_key_value_heads=shape["num_attention_heads"] // 2,
            max_position_embeddings=4096,
            sliding_window=None,
            tie_word_embeddings=False,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            **shape,
        )
    )
    model.lm_head.weight.data.mul_(scale)
    model.save_pretrained(folder)
    return Model(folder)


def _tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=[BEGIN, END, UNUSED, *NAMED],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END, pad_token=END
    )
    fast.chat_template = _CHAT
    return fast
