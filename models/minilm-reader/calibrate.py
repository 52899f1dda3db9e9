"""Makes probe.json: how much the reader and the feature probe count, and the threshold, on held-out training texts.

    python models/minilm-reader/calibrate.py DATA_FOLDER [READER_FOLDER]

READER_FOLDER holds model.onnx and tokenizer.json; this one where it is not named. Questions go through the service's
own retrieval, windows and feature probe, so that calibration sees what service will see. Texts are held out of the
reader's training. The feature probe has seen two thirds of them, which is no matter: it is too small to know them by
heart (AUROC on SQuAD's here 0.67, as on those that it never saw). They are halved: on one half the weights are fitted
(logistic regression, Platt's scaling of several scores), on the other the threshold is chosen, each kind of data
counting as the root of its size. It is the lowest within half a point of the best accuracy: between thresholds of like
accuracy the one that refuses least serves people best. "several" are questions that bring passages of other texts
beside their own; facts are sentences of a text among strangers, asked with and without the one that answers.

It also prints what a cascade would save and cost: the feature probe alone decides where it is surer than a bound.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pairs import group, held_out, rows
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from scopegate.domain import Passage
from scopegate.gate.head import probability
from scopegate.gate.probe import FeatureProbe
from scopegate.gate.reader_probe import SCORES, ReaderProbe, weighed
from scopegate.gate.retrieval import Case, Retriever
from scopegate.inference.embedder import Embedder
from scopegate.inference.encoder import load_encoder
from scopegate.inference.reader import OnnxReader, Reader
from scopegate.knowledge.sentences import split
from scopegate.settings import Settings, models_dir

NAME = "reader-1"
DEPTH = 4
PASSAGES = ("train_squad2_backtranslated", "train_nq", "train_musique", "train_repliqa")
FACTS = "spans_squadshifts"
MOST = 1_200
SEVERAL = 500
MOST_OTHERS = 7
STRANGERS = 12
LIKE = 0.005
SEED = 0
# Log odds of the feature probe, either way.
BOUNDS = (np.inf, 3.0, 2.5, 2.0, 1.5, 1.0)


class Seen(NamedTuple):
    """A row for each question. scores: (n, 4), the reader probe's SCORES."""

    kind: NDArray[np.str_]
    half: NDArray[np.bool_]
    answerable: NDArray[np.bool_]
    scores: NDArray[np.float64]


def held(data: Path, kind: str) -> list[dict[str, Any]]:
    """Held-out rows. The reader is not trained on RepLiQA."""
    found = [row for row in rows(data / f"{kind}.jsonl.gz") if kind == "train_repliqa" or held_out(group(row))]
    return sorted(found, key=lambda row: zlib.crc32(row["id"].encode()))[:MOST]


async def passages(data: Path, retriever: Retriever, depth: int) -> AsyncIterator[tuple[str, str, bool, Case]]:
    """Kind, text, label and case of questions that bring their passage."""
    for kind in PASSAGES:
        for row in held(data, kind):
            case = await retriever.from_passages(row["question"], [Passage("1", row["passage"])], depth)
            yield kind, group(row), row["answerable"], case
    rng = random.Random(SEED)
    found = held(data, PASSAGES[0])
    for row in found[:SEVERAL]:
        others = [other for other in rng.sample(found, MOST_OTHERS) if group(other) != group(row)]
        brought = [row, *others[: rng.randint(1, MOST_OTHERS)]]
        rng.shuffle(brought)
        told = [Passage(f"{number}", each["passage"]) for number, each in enumerate(brought)]
        yield "several", group(row), row["answerable"], await retriever.from_passages(row["question"], told, depth)


async def facts(data: Path, retriever: Retriever, depth: int) -> AsyncIterator[tuple[str, str, bool, Case]]:
    """The same of questions to a scope of a few facts, once with the one that answers and once without it."""
    rng = random.Random(SEED)
    found = held(data, FACTS)
    for row in found:
        own = split(row["passage"])
        answer = [text for text in own if any(each in text for each in row["answers"])]
        others = [text for text in own if text not in answer]
        strangers = split(
            next(other for other in rng.sample(found, len(found)) if group(other) != group(row))["passage"]
        )
        if len(answer) != 1:
            continue
        for answerable in (True, False):
            known = [*rng.sample(others, min(len(others), 3)), *strangers[:STRANGERS], *(answer if answerable else ())]
            if known:
                case = await retriever.from_passages(row["question"], [Passage("1", " ".join(known))], depth)
                # As a scope's: facts, best first, which were not written to stand beside each other.
                yield FACTS, group(row), answerable, replace(case, reading=case.evidence[:DEPTH], revision=1)


def first_half(text: str) -> bool:
    """Whether a held-out text is fitted on."""
    return hashlib.sha256(f"half {text}".encode()).digest()[0] < 128


async def seen(data: Path, folder: Path) -> Seen:
    settings = Settings()
    embedder = Embedder(load_encoder(settings.embedder, models_dir()), settings)
    features = FeatureProbe.load(models_dir() / "feature-probe" / "probe.json")
    reader = Reader(OnnxReader(folder), settings)
    probe = ReaderProbe.uncalibrated(reader)
    retriever = Retriever(embedder, settings)
    found = []
    for source in (passages, facts):
        async for kind, text, answerable, case in source(data, retriever, features.depth):
            _, read, count = await probe.read(case)
            odds = features.logit(case.question, case.evidence, case.rarity)
            found.append((kind, first_half(text), answerable, weighed(read.logit, odds, count)))
    await reader.stop()
    await embedder.stop()
    kinds, halves, labels, scores = zip(*found, strict=True)
    return Seen(np.array(kinds), np.array(halves), np.array(labels), np.array(scores))


def weights(kinds: NDArray[np.str_]) -> NDArray[np.float64]:
    """Of each question, so that a kind counts as the root of its size."""
    _, at, counts = np.unique(kinds, return_inverse=True, return_counts=True)
    return (1 / np.sqrt(counts))[at]


def chosen(score: NDArray[np.float64], truth: NDArray[np.bool_], weight: NDArray[np.float64]) -> float:
    tried = np.round(np.arange(0.05, 0.96, 0.01), 2)
    right = np.array([((score >= each) == truth) @ weight / weight.sum() for each in tried])
    return float(tried[right >= right.max() - LIKE].min())


def print_cascade(
    features: NDArray[np.float64],
    both: NDArray[np.float64],
    threshold: float,
    truth: NDArray[np.bool_],
    weight: NDArray[np.float64],
) -> None:
    """What is left unread, and what that costs, where the feature probe is sure of a refusal, and where of either."""
    for bound in BOUNDS:
        for name, unread in (("refusals", features < -bound), ("either", np.abs(features) > bound)):
            score = np.where(unread, probability(features), both)
            accuracy = ((score >= threshold) == truth) @ weight / weight.sum()
            area = roc_auc_score(truth, score, sample_weight=weight)
            share = unread @ weight / weight.sum()
            print(f"sure beyond {bound} of {name}: {share:.3f} unread, accuracy {accuracy:.4f}, AUROC {area:.4f}")


def main(data: Path, folder: Path) -> None:
    found = asyncio.run(seen(data, folder))
    fit, check = found.half, ~found.half
    model = LogisticRegression().fit(found.scores[fit], found.answerable[fit], weights(found.kind[fit]))
    both = probability(model.decision_function(found.scores))
    threshold = chosen(both[check], found.answerable[check], weights(found.kind[check]))
    for kind in (*PASSAGES, "several", FACTS):
        at = check & (found.kind == kind)
        truth = found.answerable[at]
        areas = [roc_auc_score(truth, score[at]) for score in (*found.scores[:, :2].T, both)]
        accuracy = ((both[at] >= threshold) == truth).mean()
        print(f"{kind}: {at.sum()}; AUROC reader, features, both:", *(f"{area:.3f}" for area in areas), end="; ")
        print(f"accuracy {accuracy:.3f}, refused {(both[at][truth] < threshold).mean():.3f}")
    print_cascade(found.scores[check, 1], both[check], threshold, found.answerable[check], weights(found.kind[check]))
    made = {
        "name": NAME,
        "reader": OnnxReader(folder).fingerprint,
        "features": FeatureProbe.load(models_dir() / "feature-probe" / "probe.json").name,
        "depth": DEPTH,
        "threshold": threshold,
        **{f"{name}_weight": float(weight) for name, weight in zip(SCORES, model.coef_[0], strict=True)},
        "bias": float(model.intercept_[0]),
    }
    (folder / "probe.json").write_text(json.dumps(made, indent=1) + "\n")
    print(made)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent)
