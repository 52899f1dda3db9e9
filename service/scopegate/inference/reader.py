"""Readers: a question and a passage in; how likely it holds the answer, and where, out."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

from scopegate.domain import Invalid
from scopegate.inference.batcher import Batcher
from scopegate.settings import Settings

# As long as the pairs that the shipped reader was trained on; beside a long question it takes more, up to MOST_TOKENS.
MAX_TOKENS = 320
MOST_TOKENS = 512
LEAST_ROOM = 96


@dataclass(frozen=True, slots=True)
class Pair:
    """A question and a passage, as a model's input.

    ids: token ids. types: each token's segment, as the model tells segments apart; empty where it does not. passage:
    whether a token is of the passage. begins: the character of the passage at which it begins.
    """

    ids: Sequence[int]
    types: Sequence[int]
    passage: Sequence[int]
    begins: Sequence[int]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader makes of a pair.

    logit: log odds that the passage holds the answer; not calibrated. places: P(the answer begins at this character),
    given that there is an answer; they sum to 1.
    """

    logit: float
    places: tuple[tuple[int, float], ...]


class ReadingModel(Protocol):
    """A model that reads. Implementations may be called from several threads at once."""

    @property
    def fingerprint(self) -> str:
        """Tells this model from any other."""

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Each text's length in tokens."""

    def room(self, question: str) -> int:
        """How many tokens of a passage fit beside the question; none or fewer where it is too long itself."""

    def pair(self, question: str, passage: str) -> Pair:
        """Both as input. The question must leave room; what the passage has beyond is cut."""

    def read(self, pairs: Sequence[Pair]) -> list[Reading]:
        """A reading of each pair. It does not depend on its neighbours."""


class Reader:
    """A reading model behind a batcher of its own, with the embedder's settings for threads and batches."""

    def __init__(self, model: ReadingModel, settings: Settings) -> None:
        self._model = model
        self._batcher: Batcher[Pair, Reading] = Batcher(
            model.read,
            "reader",
            threads=settings.embed_threads,
            batch_tokens=settings.embed_batch_tokens,
            wait_ms=settings.embed_batch_wait_ms,
            limit=settings.read_queue,
        )
        self.fingerprint = model.fingerprint
        self.lengths = model.lengths
        self.room = model.room

    @property
    def waiting(self) -> int:
        """How many pairs wait to be read."""
        return self._batcher.waiting

    async def read(self, question: str, passages: Sequence[str]) -> list[Reading]:
        """A reading of each passage; at least one. Raises Overloaded where too many wait, Unavailable once stopped."""
        pairs = await asyncio.to_thread(lambda: [self._model.pair(question, passage) for passage in passages])
        return await self._batcher.outputs(pairs, bulk=False)

    async def stop(self) -> None:
        """Ends the batcher's workers."""
        await self._batcher.stop()


def load_reader(name: str, models: Path) -> ReadingModel:
    """The shipped model of that name, or local:NAME for a Hugging Face checkpoint.

    Raises Invalid where a checkpoint cannot be loaded, or where local: lacks its extra.
    """
    if not name.startswith("local:"):
        return OnnxReader(models / name)
    try:
        from scopegate.inference.local_reader import LocalReader
    except ImportError as error:
        raise Invalid("a probe 'local:NAME' needs the extra: pip install 'scopegate[local]'") from error
    return LocalReader(name.removeprefix("local:"))


class OnnxReader:
    """A model exported by models/minilm-reader/make.py: where an answer begins, or at the first token for nowhere."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = _load_tokenizer(folder)
        self._tokenizer.enable_truncation(MOST_TOKENS, strategy="only_second")
        self._counter = _load_tokenizer(folder)
        self._counter.no_truncation()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        model = (folder / "model.onnx").read_bytes()
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.fingerprint = f"{folder.name}@{hashlib.sha256(model).hexdigest()[:12]}"

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """See ReadingModel."""
        return [len(each.ids) for each in self._counter.encode_batch_fast(list(texts), add_special_tokens=False)]

    def room(self, question: str) -> int:
        """See ReadingModel."""
        return room(self.lengths([question])[0] + 3, MOST_TOKENS)

    def pair(self, question: str, passage: str) -> Pair:
        """See ReadingModel."""
        encoded = self._tokenizer.encode(question, passage)
        held = [
            int(kind and not special)
            for kind, special in zip(encoded.type_ids, encoded.special_tokens_mask, strict=True)
        ]
        return Pair(encoded.ids, encoded.type_ids, held, [begin for begin, _ in encoded.offsets])

    def read(self, pairs: Sequence[Pair]) -> list[Reading]:
        """See ReadingModel."""
        ids = np.zeros((len(pairs), max(map(len, pairs))), np.int64)
        mask, types = np.zeros_like(ids), np.zeros_like(ids)
        for row, pair in enumerate(pairs):
            ids[row, : len(pair)] = pair.ids
            mask[row, : len(pair)] = 1
            types[row, : len(pair)] = pair.types
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        scores: NDArray[np.float32] = self._session.run(None, inputs)[0]
        return [reading(pair, row) for pair, row in zip(pairs, scores[..., 0], strict=True)]


def _load_tokenizer(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    # "[SEP]" in a text is what somebody wrote, not where the passage begins.
    tokenizer.encode_special_tokens = True
    return tokenizer


def room(taken: int, most: int) -> int:
    """How many tokens are left for a passage, of MAX_TOKENS; beside a long question LEAST_ROOM, as far as most goes."""
    return min(most - taken, max(MAX_TOKENS - taken, LEAST_ROOM))


def reading(pair: Pair, scores: NDArray[np.float32]) -> Reading:
    """scores: of each token, that the answer begins there; the first token's, that there is none."""
    at = np.flatnonzero(pair.passage)
    if not len(at):
        return Reading(-np.inf, ())
    here = scores[at].astype(float)
    top = float(here.max())
    shares = np.exp(here - top)
    whole = float(shares.sum())
    places = tuple(
        (pair.begins[token], share / whole) for token, share in zip(at.tolist(), shares.tolist(), strict=True)
    )
    return Reading(top + float(np.log(whole)) - float(scores[0]), places)
