"""Any Hugging Face checkpoint for extractive questions or for pairs of texts as a reader (extra `local`)."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from scopegate.domain import Invalid
from scopegate.inference.checkpoint import fingerprint
from scopegate.inference.reader import MOST_TOKENS, Pair, Reading, reading, room

# What checkpoints call the label that says yes, where they name their labels.
_YES = ("answerable", "has_answer", "relevant", "supported", "entailment", "yes", "true")
# Read once at the start, together: what cannot be read then would break every check.
_TRIAL = (("Who?", "Ann."), ("When was it?", "It was on Sunday, said Ann."))


class LocalReader:
    """A model by path or by name, on whatever device there is. None of a checkpoint's own code is run.

    One for extractive questions must be of the kind that can say "nowhere", as those for SQuAD 2.0 do. A classifier has
    one output, or two without names of which the second says yes, or labels of which one says so by its name.
    """

    def __init__(self, name: str) -> None:
        """Raises Invalid where there is no such model, or one of another kind, or one that cannot read a pair."""
        try:
            self._load(name)
            self.read([self.pair(*texts) for texts in _TRIAL])
        except Invalid:
            raise
        except Exception as error:
            # Libraries raise what they like over a broken checkpoint.
            raise Invalid(f"no model that reads can be loaded from 'local:{name}': {error}") from error
        self.fingerprint = fingerprint(name, self._model)

    def _load(self, name: str) -> None:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        kinds = " ".join(config.architectures or ())
        self._points = "QuestionAnswering" in kinds
        if not (self._points or "SequenceClassification" in kinds):
            raise Invalid(
                f"'local:{name}' is no reader: it takes a checkpoint for question answering or sequence classification"
            )
        self._yes = 0 if self._points else _yes(config)
        # "[SEP]" in a text is what somebody wrote, not where the passage begins.
        self._tokenizer = AutoTokenizer.from_pretrained(
            name, padding_side="right", split_special_tokens=True, trust_remote_code=False
        )
        # A fast tokenizer keeps what the last call wanted cut.
        self._tokenizing = threading.Lock()
        if not self._fits():
            raise Invalid(f"the tokenizer of 'local:{name}' is not fast, pads nothing, or puts no token in front")
        kind = AutoModelForQuestionAnswering if self._points else AutoModelForSequenceClassification
        model, loaded = kind.from_pretrained(
            name, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
        )
        if missing := sorted(loaded["missing_keys"]):
            raise Invalid(f"'local:{name}' lacks weights: {', '.join(missing[:3])}")
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = model.eval().to(self._device)
        # Some families count positions from behind their padding token.
        positions = getattr(config, "max_position_embeddings", MOST_TOKENS + 2) - 2
        self._most = max(1, min(MOST_TOKENS, self._tokenizer.model_max_length, positions))

    def _fits(self) -> bool:
        """Whether pairs can be told apart and padded, and a pointer finds a token of neither text in front."""
        if not self._tokenizer.is_fast or self._tokenizer.pad_token is None:
            return False
        return not self._points or self._tokenizer("a", "b").sequence_ids(0)[0] is None

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
        begins = [begin for begin, _ in encoded["offset_mapping"]]
        return Pair(encoded["input_ids"], encoded.get("token_type_ids", ()), held, begins)

    def read(self, pairs: Sequence[Pair]) -> list[Reading]:
        """See ReadingModel."""
        rows = {"input_ids": [list(pair.ids) for pair in pairs]}
        if pairs[0].types:
            rows["token_type_ids"] = [list(pair.types) for pair in pairs]
        batch = self._tokenizer.pad(rows, return_tensors="pt")
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
    if len(labels) == 1 or (len(labels) == 2 and all(re.fullmatch(r"label_\d", name) for name in labels.values())):
        return len(labels) - 1
    raise Invalid(f"none of the labels {', '.join(config.id2label.values())} says that a passage holds the answer")
