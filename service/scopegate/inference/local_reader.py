"""Any Hugging Face checkpoint for extractive questions or for pairs of texts as a reader (extra `local`)."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from scopegate.domain import Invalid
from scopegate.inference.reader import MOST_TOKENS, Pair, Reading, reading, room

MAX_NAME = 128
# What checkpoints call the label that says yes, where they name their labels.
_YES = ("answerable", "relevant", "supported", "yes", "true")


class LocalReader:
    """A model by path or by name, on whatever device there is.

    One for extractive questions must be of the kind that can say "nowhere", as those for SQuAD 2.0 do. A classifier has
    one output, or two of which the second says yes, or labels of which one says so by its name.
    """

    def __init__(self, name: str) -> None:
        """Raises Invalid where there is no such model, or one of another kind, or one whose tokenizer does not fit."""
        try:
            config = AutoConfig.from_pretrained(name)
            self._tokenizer = AutoTokenizer.from_pretrained(name, padding_side="right")
            kinds = " ".join(config.architectures or ())
            self._points = "QuestionAnswering" in kinds
            if not (self._points or "SequenceClassification" in kinds):
                raise Invalid(
                    f"'local:{name}' is no reader: it takes a checkpoint for question answering or sequence "
                    "classification"
                )
            kind = AutoModelForQuestionAnswering if self._points else AutoModelForSequenceClassification
            self._model = kind.from_pretrained(name, dtype=torch.float32).eval()
        except (OSError, ValueError, ImportError, KeyError) as error:
            raise Invalid(f"no model can be loaded from 'local:{name}'") from error
        if not self._fits():
            raise Invalid(f"the tokenizer of 'local:{name}' is not fast, pads nothing, or puts no token in front")
        # A fast tokenizer keeps what the last call wanted cut.
        self._tokenizing = threading.Lock()
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model.to(self._device)
        self._yes = 0 if self._points else _yes(config)
        # Some families count positions from behind their padding token.
        positions = getattr(config, "max_position_embeddings", MOST_TOKENS + 2) - 2
        self._most = max(1, min(MOST_TOKENS, self._tokenizer.model_max_length, positions))
        weights = hashlib.sha256()
        for key, tensor in sorted(self._model.state_dict().items()):
            weights.update(key.encode())
            weights.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        self.fingerprint = f"local:{Path(name).name[:MAX_NAME]}@{weights.hexdigest()[:12]}"

    def _fits(self) -> bool:
        """Whether pairs can be told apart and padded, and begin with a token of neither text."""
        if not self._tokenizer.is_fast or self._tokenizer.pad_token is None:
            return False
        return self._tokenizer("a", "b").sequence_ids(0)[0] is None

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """See ReadingModel."""
        with self._tokenizing:
            return [len(ids) for ids in self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    def room(self, question: str) -> int:
        """See ReadingModel."""
        around: int = self._tokenizer.num_special_tokens_to_add(pair=True)
        return room(around + self.lengths([question])[0], self._most)

    def pair(self, question: str, passage: str) -> Pair:
        """See ReadingModel."""
        with self._tokenizing:
            encoded = self._tokenizer(
                question, passage, truncation="only_second", max_length=self._most, return_offsets_mapping=True
            )
        held = [int(each == 1) for each in encoded.sequence_ids(0)]
        return Pair(encoded["input_ids"], held, [begin for begin, _ in encoded["offset_mapping"]])

    def read(self, pairs: Sequence[Pair]) -> list[Reading]:
        """See ReadingModel."""
        batch = self._tokenizer.pad({"input_ids": [list(pair.ids) for pair in pairs]}, return_tensors="pt")
        if "token_type_ids" in self._tokenizer.model_input_names:
            batch["token_type_ids"] = _types(pairs, batch["input_ids"].shape[1])
        with torch.inference_mode():
            output = self._model(**{key: value.to(self._device) for key, value in batch.items()})
        if self._points:
            starts = output.start_logits.float().cpu().numpy()
            return [reading(pair, row) for pair, row in zip(pairs, starts, strict=True)]
        logits = output.logits.float().cpu()
        if logits.shape[1] == 1:
            return [Reading(each, ()) for each in logits[:, 0].tolist()]
        others = [at for at in range(logits.shape[1]) if at != self._yes]
        return [Reading(each, ()) for each in (logits[:, self._yes] - logits[:, others].logsumexp(1)).tolist()]


def _yes(config: Any) -> int:
    """Which output says yes. Raises Invalid where that cannot be told."""
    labels = {at: name.casefold() for at, name in config.id2label.items()}
    named = [at for at, name in labels.items() if name in _YES]
    if len(named) == 1:
        return int(named[0])
    if len(labels) <= 2:
        return len(labels) - 1
    raise Invalid(f"none of the labels {', '.join(config.id2label.values())} says that a passage holds the answer")


def _types(pairs: Sequence[Pair], longest: int) -> torch.Tensor:
    types = torch.zeros((len(pairs), longest), dtype=torch.long)
    for row, pair in enumerate(pairs):
        if 1 in pair.passage:
            types[row, pair.passage.index(1) : len(pair)] = 1
    return types
