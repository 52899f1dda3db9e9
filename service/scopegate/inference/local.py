"""Any sentence-transformers model as an encoder (extra `local`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch.nn.functional import normalize

from scopegate.inference.checkpoint import fingerprint
from scopegate.inference.encoder import MAX_TOKENS


class LocalEncoder:
    """A sentence-transformers model, by path or by name, on whatever device the library finds."""

    def __init__(self, name: str) -> None:
        self._model = SentenceTransformer(name).eval()
        self._tokenizer = self._model.tokenizer
        self.fingerprint = fingerprint(name, self._model)
        self.dimension = len(self.encode(self.tokens(["dimension"]))[0])

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """See Encoder."""
        limit = min(self._model.max_seq_length or MAX_TOKENS, MAX_TOKENS)
        encoded: list[list[int]] = self._tokenizer(list(texts), truncation=True, max_length=limit)["input_ids"]
        return encoded

    def encode(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """See Encoder."""
        batch = self._tokenizer.pad({"input_ids": [list(text) for text in tokens]}, return_tensors="pt")
        with torch.inference_mode():
            output = self._model({key: value.to(self._model.device) for key, value in batch.items()})
            vectors: NDArray[np.float32] = normalize(output["sentence_embedding"], dim=-1).float().cpu().numpy()
        return vectors
