"""Encoders: texts in, unit vectors out, in the calling thread."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

from scopegate.domain import Invalid

MAX_TOKENS = 256


class Encoder(Protocol):
    """A model that turns texts into vectors. Implementations may be called from several threads at once."""

    @property
    def fingerprint(self) -> str:
        """Tells vectors of this model from any other's; a scope stores it."""

    @property
    def dimension(self) -> int:
        """The length d of a vector."""

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Each text's token ids, at most MAX_TOKENS of them; what a text has beyond is cut."""

    def encode(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Vectors of unit length, shape (len(tokens), d). A text's vector does not depend on its neighbours."""


class OnnxEncoder:
    """A sentence encoder exported by models/minilm-l6-int8/make.py: pooling and normalisation are inside the graph."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        model = (folder / "model.onnx").read_bytes()
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.fingerprint = f"{folder.name}@{hashlib.sha256(model).hexdigest()[:12]}"
        self.dimension: int = self._session.get_outputs()[0].shape[1]

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """See Encoder."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def encode(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """See Encoder."""
        ids = np.zeros((len(tokens), max(map(len, tokens))), np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(tokens):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        vectors: NDArray[np.float32] = self._session.run(None, inputs)[0]
        return vectors


def load_encoder(name: str, models: Path) -> Encoder:
    """The encoder that a setting names: a folder of models, or local:NAME for a sentence-transformers model.

    Raises Invalid where there is none of that name, or where local: lacks its extra.
    """
    if name.startswith("local:"):
        try:
            from scopegate.inference.local import LocalEncoder
        except ImportError as error:
            raise Invalid("an embedder 'local:NAME' needs the extra: pip install 'scopegate[local]'") from error
        return LocalEncoder(name.removeprefix("local:"))
    folder = models / name
    if not (folder / "model.onnx").is_file():
        raise Invalid(f"there is no embedder {name!r} among the shipped models")
    return OnnxEncoder(folder)
