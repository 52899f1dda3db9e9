"""What a checkpoint of somebody else's is known by (extra `local`)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

MAX_NAME = 128


def fingerprint(name: str, model: torch.nn.Module) -> str:
    """Tells this model from any other, by its weights.

    Where they lie is nobody else's business, and does not make them others: of a path the last part is kept.
    """
    weights = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        weights.update(key.encode())
        weights.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return f"local:{Path(name).name[:MAX_NAME]}@{weights.hexdigest()[:12]}"
