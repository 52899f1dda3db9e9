"""The LLM that a probe reads: its tokenizer and config, how a case becomes its input, and which token ids are free."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoConfig, AutoTokenizer

from scopegate.domain import Invalid, Turn
from scopegate.probe_file import Position, Slots

# Tokens that model makers keep for later: <|reserved_special_token_0|>, [control_555], <SPECIAL_20>, <unused7>, ...
_RESERVED = re.compile(r"(?i)[<\[|]+(reserved|control|special|unused|extra|placeholder|dummy)_?(\w+_)?\d+[|\]>]+")

_SLOTS = 3


class Backbone:
    """A causal language model by name or folder, without its weights.

    Raises Invalid, in one sentence, where it cannot be read, has no chat template, or is of no use to the position.
    """

    def __init__(self, model: str, position: Position, revision: str | None = None) -> None:
        self.model = model
        self.asked_revision = revision
        self.position = position
        try:
            self.config: Any = AutoConfig.from_pretrained(model, revision=revision)
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model, revision=revision)
        except (OSError, ValueError) as error:
            raise Invalid(f"the model {model} cannot be read: {str(error).splitlines()[0]}") from error
        architectures = self.config.architectures or ("an unknown architecture",)
        if not architectures[0].endswith("ForCausalLM"):
            raise Invalid(f"the model {model} is {architectures[0]}, and only causal language models can be probed")
        self.architecture: str = architectures[0]
        self.longest: int = self.config.max_position_embeddings
        self.slots, self.token, self._after = self._ids()

    @property
    def fingerprint(self) -> str:
        """Tells these weights from others: the hub's commit, or a digest of the folder's files."""
        if self.revision is not None:
            return f"{self.model}@{self.revision}"
        digest = hashlib.sha256()
        for file in sorted(Path(self.model).glob("*.safetensors")):
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        digest.update(repr(sorted(self.config.to_diff_dict().items())).encode())
        return digest.hexdigest()

    @property
    def revision(self) -> str | None:
        """The hub's commit; None for a folder."""
        return getattr(self.config, "_commit_hash", None)

    def describe(self) -> dict[str, Any]:
        """The fields of Description that the backbone decides."""
        quantization = getattr(self.config, "quantization_config", None) or {}
        return {
            "architecture": self.architecture,
            "model": Path(self.model).name if Path(self.model).is_dir() else self.model,
            "hidden_size": self.config.hidden_size,
            "vocab_size": self.config.vocab_size,
            "revision": self.revision,
            "quantization": quantization.get("quant_method"),
            "position": self.position,
            "token": self.token,
            "slots": self.slots,
        }

    def ids(self, turns: Sequence[Turn]) -> list[int]:
        """The prompt's token ids, with the position's own token after them. Raises Invalid where it is too long."""
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        try:
            text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except (ValueError, TemplateError) as error:
            raise Invalid(f"the chat template of {self.model} cannot render the prompt: {error}") from error
        ids: list[int] = [*self._tokenizer(text, add_special_tokens=False)["input_ids"], *self._after]
        if len(ids) > self.longest:
            raise Invalid(f"a prompt has {len(ids)} tokens, and the model {self.model} takes {self.longest}")
        return ids

    def _ids(self) -> tuple[Slots, str | None, list[int]]:
        """The slots, and the position's own token: its text, and its id where there is one."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        padding = sorted(set(range(self.config.vocab_size)) - set(vocabulary.values()))
        template = self._tokenizer.chat_template or ""
        reserved = sorted(
            index
            for text, index in vocabulary.items()
            if _RESERVED.fullmatch(text) and text not in str(template) and index < self.config.vocab_size
        )
        token: str | None = None
        after: list[int] = []
        if self.position is Position.EOS:
            token, after = self._tokenizer.eos_token, [self._tokenizer.eos_token_id]
        elif self.position is Position.UNUSED_TOKEN:
            if not reserved:
                raise Invalid(
                    f"the tokenizer of {self.model} has no reserved special token: "
                    "train for the position last_prompt_token or eos"
                )
            after = [reserved.pop(0)]
            token = self._tokenizer.convert_ids_to_tokens(after[0])
        if after == [None]:
            raise Invalid(f"the tokenizer of {self.model} has no end-of-text token")
        spare = padding if len(padding) >= _SLOTS else reserved
        if len(spare) < _SLOTS:
            raise Invalid(
                f"the model {self.model} has no {_SLOTS} spare token ids for the probe's slots: neither reserved "
                "special tokens nor ids beyond its tokenizer's"
            )
        return Slots(*spare[-_SLOTS:]), token, after
