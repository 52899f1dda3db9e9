"""Finds the hard gate's alpha for this embedder: python models/minilm-l6-int8/calibrate_alpha.py DATA_FOLDER.

DATA_FOLDER holds train_*.jsonl.gz with rows of question, passage and answerable. alpha lets through 96 % of the
answerable questions, each kind of question counting the same: the probe stands behind it, so the hard gate is there to
stop what is plainly elsewhere.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scopegate.inference.encoder import OnnxEncoder
from scopegate.knowledge.sentences import split

SEED = 20261120
FILES = ("train_squad2_backtranslated", "train_nq", "train_repliqa")
QUESTIONS = 1_000
STRANGERS = 100
BATCH = 32
LET_THROUGH = 0.96

Floats = NDArray[np.float32]


def sample(path: Path, generator: random.Random) -> tuple[list[str], list[list[str]]]:
    """Answerable questions and the sentences of each one's passage, at most one question a passage."""
    with gzip.open(path, "rt") as lines:
        rows = [row for row in map(json.loads, lines) if row["answerable"]]
    generator.shuffle(rows)
    asked = {row["passage"]: row["question"] for row in rows}
    kept = [(question, split(passage)) for passage, question in asked.items()][:QUESTIONS]
    return [question for question, _ in kept], [sentences for _, sentences in kept]


def embed(encoder: OnnxEncoder, texts: list[str]) -> Floats:
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    vectors = np.empty((len(texts), encoder.dimension), np.float32)
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        vectors[batch] = encoder.encode(encoder.tokens([texts[at] for at in batch]))
    return vectors


def main(data: Path) -> None:
    generator = random.Random(SEED)
    encoder = OnnxEncoder(Path(__file__).parent)
    own, strange = {}, {}
    for name in FILES:
        questions, passages = sample(data / f"{name}.jsonl.gz", generator)
        asked = embed(encoder, questions)
        known = embed(encoder, [sentence for sentences in passages for sentence in sentences])
        home = np.repeat(np.arange(len(passages)), [len(sentences) for sentences in passages])
        distances = 2.0 - 2.0 * asked @ known.T
        same = home[None, :] == np.arange(len(questions))[:, None]
        own[name] = np.where(same, distances, 4.0).min(axis=1)
        others = np.where(same, 4.0, distances)
        strange[name] = others[:, generator.sample(range(len(home)), min(STRANGERS, len(home)))].min(axis=1)
    steps = np.arange(60, 180, 5) / 100
    passed = {step: float(np.mean([(own[name] < step).mean() for name in FILES])) for step in steps}
    alpha = next(step for step in steps if passed[step] >= LET_THROUGH)
    print(f"alpha {alpha}: lets through {passed[alpha]:.3f} of answerable questions, kinds counting the same")
    for name in FILES:
        low, middle, high = np.quantile(own[name], [0.5, 0.9, 0.97])
        print(
            f"{name:28} n {len(own[name]):5}  answerable let through {(own[name] < alpha).mean():.3f}"
            f"  S at 50/90/97 % {low:.2f} {middle:.2f} {high:.2f}"
            f"  strangers, {STRANGERS} facts of one corpus {(strange[name] < alpha).mean():.3f}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
