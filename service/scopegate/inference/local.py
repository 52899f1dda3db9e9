"""Any sentence-transformers model as an encoder (extra `local`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch.nn.functional import normalize

from scopegate.inference.encoder import MAX_TOKENS

MAX_NAME = 128


class LocalEncoder:
    """A sentence-transformers model, by path or by name, on whatever device the library finds."""

    def __init__(self, name: str) -> None:
        self._model = SentenceTransformer(name).eval()
        self._tokenizer = self._model.tokenizer
        weights = hashlib.sha256()
        for key, tensor in sorted(self._model.state_dict().items()):
            weights.update(key.encode())
            weights.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        # Where the weights lie is nobody else's business, and does not make them others.
        self.fingerprint = f"local:{Path(name).name[:MAX_NAME]}@{weights.hexdigest()[:12]}"
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
