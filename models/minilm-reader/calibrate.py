"""Makes probe.json: how much the reader and the feature probe count, and the threshold, on held-out training texts.

    python models/minilm-reader/calibrate.py DATA_FOLDER [READER_FOLDER]

READER_FOLDER holds model.onnx and tokenizer.json; this one where it is not named. Questions go through the service's
own retrieval, windows and feature probe, so that calibration sees what service will see. Held-out texts are halved: on
one half the weights are fitted (logistic regression, Platt's scaling of two scores), on the other the threshold is
chosen, each kind of data counting the same. It is the lowest within half a point of the best accuracy: between
thresholds of like accuracy the one that refuses least serves people best.
"""

from __future__ import annotations

import asyncio
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pairs import group, held_out, rows
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from scopegate.domain import Passage
from scopegate.gate.head import probability
from scopegate.gate.probe import FeatureProbe
from scopegate.gate.reader_probe import ReaderProbe
from scopegate.gate.retrieval import Retriever
from scopegate.inference.embedder import Embedder
from scopegate.inference.encoder import load_encoder
from scopegate.inference.reader import OnnxReader, Reader
from scopegate.settings import Settings, models_dir

NAME = "reader-1"
DEPTH = 4
KINDS = ("train_squad2_backtranslated", "train_nq", "train_musique", "train_repliqa")
MOST = 1_200
LIKE = 0.005


class Seen(NamedTuple):
    """A row for each question. scores: (n, 2), the reader's log odds and the feature probe's."""

    kind: NDArray[np.str_]
    half: NDArray[np.bool_]
    answerable: NDArray[np.bool_]
    scores: NDArray[np.float64]


def held(data: Path, kind: str) -> Iterator[tuple[str, bool, str, str]]:
    """Question, label, passage and text of held-out rows. RepLiQA is not trained on, so all of it is held out."""
    found = [row for row in rows(data / f"{kind}.jsonl.gz") if kind == "train_repliqa" or held_out(group(row))]
    found.sort(key=lambda row: zlib.crc32(row["id"].encode()))
    for row in found[:MOST]:
        yield row["question"], row["answerable"], row["passage"], group(row)


async def seen(data: Path, folder: Path) -> Seen:
    settings = Settings()
    embedder = Embedder(load_encoder(settings.embedder, models_dir()), settings)
    features = FeatureProbe.load(models_dir() / "feature-probe" / "probe.json")
    reader = Reader(OnnxReader(folder), settings)
    plain = {"name": NAME, "reader": reader.fingerprint, "features": features.name, "threshold": 0.5, "depth": DEPTH}
    probe = ReaderProbe(plain | {"reader_weight": 1, "feature_weight": 0, "bias": 0}, reader, features)
    retriever = Retriever(embedder, settings)
    found = []
    for kind in KINDS:
        for question, answerable, passage, text in held(data, kind):
            case = await retriever.from_passages(question, [Passage("1", passage)], probe.depth)
            _, read = await probe.best(case)
            scores = read.logit, features.logit(question, case.evidence, case.rarity)
            found.append((kind, zlib.crc32(text.encode()) % 2 == 0, answerable, scores))
    await reader.stop()
    await embedder.stop()
    kinds, halves, labels, scores = zip(*found, strict=True)
    return Seen(np.array(kinds), np.array(halves), np.array(labels), np.array(scores))


def weights(kinds: NDArray[np.str_]) -> NDArray[np.float64]:
    """Of each question, so that kinds count the same."""
    names, at, counts = np.unique(kinds, return_inverse=True, return_counts=True)
    return (len(kinds) / len(names) / counts)[at]


def chosen(score: NDArray[np.float64], truth: NDArray[np.bool_], weight: NDArray[np.float64]) -> float:
    tried = np.round(np.arange(0.05, 0.96, 0.01), 2)
    right = np.array([((score >= each) == truth) @ weight / weight.sum() for each in tried])
    return float(tried[right >= right.max() - LIKE].min())


def main(data: Path, folder: Path) -> None:
    found = asyncio.run(seen(data, folder))
    fit, check = found.half, ~found.half
    model = LogisticRegression().fit(found.scores[fit], found.answerable[fit], weights(found.kind[fit]))
    (reader_weight, feature_weight), (bias,) = model.coef_[0], model.intercept_
    both = probability(found.scores @ model.coef_[0] + bias)
    threshold = chosen(both[check], found.answerable[check], weights(found.kind[check]))
    for kind in KINDS:
        at = check & (found.kind == kind)
        truth = found.answerable[at]
        areas = [roc_auc_score(truth, score[at]) for score in (*found.scores.T, both)]
        accuracy = ((both[at] >= threshold) == truth).mean()
        print(f"{kind}: {at.sum()}; AUROC reader, features, both:", *(f"{area:.3f}" for area in areas), end="; ")
        print(f"accuracy {accuracy:.3f}, refused {(both[at][truth] < threshold).mean():.3f}")
    made = {
        "name": NAME,
        "reader": OnnxReader(folder).fingerprint,
        "features": FeatureProbe.load(models_dir() / "feature-probe" / "probe.json").name,
        "depth": DEPTH,
        "threshold": threshold,
        "reader_weight": float(reader_weight),
        "feature_weight": float(feature_weight),
        "bias": float(bias),
    }
    (folder / "probe.json").write_text(json.dumps(made, indent=1) + "\n")
    print(made)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent)
