"""Trains the feature probe: python models/feature-probe/train.py DATA_FOLDER OUTPUT_FOLDER CACHE_FOLDER.

DATA_FOLDER holds train_*.jsonl.gz and spans_*.jsonl.gz with rows of question, passage, answerable and, if known, doc.
Needs scikit-learn beside scopegate. Texts are split, embedded and turned into features by scopegate itself, so that
the probe sees in training what it will see in service.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

from scopegate.domain import Evidence
from scopegate.gate.features import NAMES, Kind, answer_places, features, read_question, read_sentence
from scopegate.inference.encoder import OnnxEncoder
from scopegate.knowledge.sentences import split
from scopegate.settings import models_dir
from scopegate.words import WordCounts, words

Floats = NDArray[np.float64]

SWAPPED = frozenset({"when", "where", "why"})
NAME = re.compile(r"(?<=\s)[A-Z][\w’'-]*(?: [A-Z][\w’'-]*)*")
CHANGED = 0.4
SEED = 20261120
SQUAD_PASSAGES = 10_000
SHIFTS_PASSAGES = 4_000
DEPTH = 8
WORDS_FROM = ("train_squad2_backtranslated", "train_nq", "train_repliqa", "spans_squadshifts")
BATCH = 32
# How much one example of a kind counts: few real ones of a kind weigh more than many made or noisy ones.
WEIGHTS = {
    "squad2": 1.0,
    "shifts": 0.5,
    "nq": 5.0,
    "repliqa": 25.0,
    "longer": 1.0,
    "scope": 1.0,
    "few": 1.0,
    "changed": 1.0,
}
# The threshold is chosen on the kinds that have both labels.
JUDGED = ("squad2", "nq", "repliqa", "longer", "scope", "few")
HIDDEN = 32
NETWORKS = 4
# Between thresholds of like accuracy the one that refuses least is taken.
LIKE = 0.005
RESAMPLED = 60_000


@dataclass(frozen=True, slots=True)
class Example:
    """A question, the sentences it is to be judged against, and whether they answer it.

    kind: how the example was made. part: train, calibrate or choose; an article or a text stands in one part only.
    """

    kind: str
    part: str
    question: str
    sentences: tuple[str, ...]
    rarity: Callable[[str], float]
    answerable: bool


def part_of(document: str) -> str:
    """The part that a document falls into: 70 % train, 15 % calibrate, 15 % choose."""
    draw = hashlib.sha256(document.encode()).digest()[0] / 256
    return "train" if draw < 0.7 else "calibrate" if draw < 0.85 else "choose"


def rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        yield from map(json.loads, lines)


@dataclass(frozen=True, slots=True)
class Text:
    """A passage with the questions asked of it."""

    document: str
    sentences: tuple[str, ...]
    questions: tuple[tuple[str, bool], ...]


def texts(path: Path, per_label: int, limit: int | None = None) -> list[Text]:
    """The passages of a file, at most limit of them, each with at most per_label questions of either label."""
    asked: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    documents: dict[str, str] = {}
    for row in rows(path):
        asked[row["passage"]].append((row["question"], row["answerable"]))
        documents[row["passage"]] = f"{path.name}:{row.get('doc', row.get('title', row['passage']))}"
    generator = random.Random(SEED)
    passages = sorted(asked)
    generator.shuffle(passages)
    found = []
    for passage in passages[:limit]:
        questions = asked[passage]
        generator.shuffle(questions)
        kept = [[q for q in questions if q[1] is label][:per_label] for label in (True, False)]
        sentences = tuple(split(passage))
        if sentences:
            found.append(Text(documents[passage], sentences, tuple(kept[0] + kept[1])))
    return found


class Vectors:
    """Embeddings by text, kept in a folder between runs."""

    def __init__(self, encoder: OnnxEncoder, folder: Path) -> None:
        self._encoder = encoder
        self._folder = folder
        self._rows: dict[str, NDArray[np.float32]] = {}
        self._last: tuple[tuple[str, ...], NDArray[np.float32]] = ((), np.empty((0, 0), np.float32))
        folder.mkdir(parents=True, exist_ok=True)
        for saved in sorted(folder.glob("*.npz")):
            with np.load(saved) as held:
                self._rows.update(zip(held["texts"].tolist(), held["vectors"].astype(np.float32), strict=True))

    def __getitem__(self, text: str) -> NDArray[np.float32]:
        return self._rows[text]

    def matrix(self, texts: tuple[str, ...]) -> NDArray[np.float32]:
        """The texts' vectors, shape (len(texts), d); the last one asked for is kept, since neighbours share it."""
        if self._last[0] is not texts:
            self._last = (texts, np.stack([self._rows[text] for text in texts]))
        return self._last[1]

    def add(self, wanted: Iterable[str]) -> None:
        """Embed what is not known yet, texts of similar length together."""
        new = sorted({text for text in wanted if text not in self._rows}, key=len)
        for start in range(0, len(new), 20_000):
            chunk = new[start : start + 20_000]
            vectors = np.concatenate(
                [
                    self._encoder.encode(self._encoder.tokens(chunk[at : at + BATCH]))
                    for at in range(0, len(chunk), BATCH)
                ]
            )
            self._rows.update(zip(chunk, vectors, strict=True))
            name = hashlib.sha256("\0".join(chunk).encode()).hexdigest()[:16]
            np.savez(self._folder / f"{name}.npz", texts=np.array(chunk), vectors=vectors.astype(np.float16))
            print(f"embedded {start + len(chunk):,} of {len(new):,}", flush=True)


def background(data: Path) -> dict[str, float]:
    """The share of distinct sentences that hold each stem, for the stems in at least one of 10,000."""
    passages = {row["passage"] for name in WORDS_FROM for row in rows(data / f"{name}.jsonl.gz")}
    sentences = {sentence for passage in passages for sentence in split(passage)}
    holding = Counter(held for sentence in sentences for held in {word.stem for word in words(sentence)})
    return {
        stem: round(count / len(sentences), 5)
        for stem, count in holding.most_common()
        if count >= len(sentences) / 10_000
    }


def counted(sentences: Iterable[str]) -> WordCounts:
    counts = WordCounts()
    for sentence in sentences:
        counts.add(sentence)
    return counts


def on_own_passage(kind: str, source: Iterable[Text]) -> Iterator[Example]:
    """A question against the passage it was asked of."""
    for text in source:
        rarity = counted(text.sentences).rarity
        for question, answerable in text.questions:
            yield Example(kind, part_of(text.document), question, text.sentences, rarity, answerable)


def on_longer_texts(source: Iterable[Text], generator: random.Random) -> Iterator[Example]:
    """Passages of one article joined to a longer text; the questions of its other passages are on topic, unanswered."""
    articles: dict[str, list[Text]] = defaultdict(list)
    for text in source:
        articles[text.document].append(text)
    for document, held in sorted(articles.items()):
        generator.shuffle(held)
        while len(held) >= 4:
            size = min(generator.randint(2, 6), len(held) // 2)
            inside, outside, held = held[:size], held[size : 2 * size], held[2 * size :]
            sentences = tuple(sentence for text in inside for sentence in text.sentences)
            rarity = counted(sentences).rarity
            for text in inside:
                for question, answerable in dict.fromkeys((text.questions[0], text.questions[-1])):
                    yield Example("longer", part_of(document), question, sentences, rarity, answerable)
            for text in outside:
                for question, _ in text.questions[:1]:
                    yield Example("longer", part_of(document), question, sentences, rarity, False)


def in_scopes(source: Sequence[Text], generator: random.Random) -> Iterator[Example]:
    """Scopes of 3 to 3,000 facts: the sentences of some texts, asked the questions of these and of other texts."""
    for part in ("train", "calibrate", "choose"):
        own = [text for text in source if part_of(text.document) == part]
        asked = 0
        while asked < 0.6 * len(own):
            size = round(math.exp(generator.uniform(math.log(3), math.log(3_000))))
            # Neighbours in the shuffled order are strangers, in the sorted one they share an article.
            ordered = (
                sorted(own, key=lambda text: text.document)
                if generator.random() < 0.5
                else generator.sample(own, len(own))
            )
            start = generator.randrange(len(ordered))
            rolled = ordered[start:] + ordered[:start]
            sentences: list[str] = []
            inside = 0
            while inside < len(rolled) // 2 and (not inside or len(sentences) < size):
                sentences.extend(rolled[inside].sentences)
                inside += 1
            outside = rolled[inside:]
            facts = tuple(sentences)
            rarity = counted(facts).rarity
            chosen = generator.sample(rolled[:inside], min(inside, 25))
            for text in chosen:
                for question, answerable in dict.fromkeys((text.questions[0], text.questions[-1])):
                    yield Example("scope", part, question, facts, rarity, answerable)
            for text in outside[: len(chosen) // 2] + generator.sample(
                outside, min(len(outside), len(chosen) // 2 + 1)
            ):
                for question, _ in text.questions[:1]:
                    yield Example("scope", part, question, facts, rarity, False)
            asked += len(chosen)


def in_few_facts(source: Sequence[Text], answers: dict[str, list[str]], generator: random.Random) -> Iterator[Example]:
    """A handful of facts about what is asked, once with the sentence that answers and once without it."""
    for text in source:
        strangers = generator.choice(source).sentences
        for question, _ in text.questions:
            holds = [any(answer in sentence for answer in answers[question]) for sentence in text.sentences]
            others = [sentence for sentence, held in zip(text.sentences, holds, strict=True) if not held]
            if sum(holds) != 1 or not others:
                continue
            for answerable in (True, False):
                facts = generator.sample(others, min(len(others), generator.randint(0 if answerable else 1, 3)))
                if answerable:
                    facts.append(text.sentences[holds.index(True)])
                facts.extend(generator.sample(strangers, min(len(strangers), generator.randint(0, 4))))
                rarity = counted(facts).rarity
                yield Example("few", part_of(text.document), question, tuple(facts), rarity, answerable)


def changed(source: Sequence[Text], generator: random.Random) -> Iterator[Example]:
    """Answered questions, and changes of them that the facts no longer answer.

    "When", "where" or "why" becomes one whose kind of answer the closest facts do not hold; a name becomes that of
    something else; or all that is asked is where a thing is, of which the closest facts do or do not tell the place.
    """
    names = [name for text in source for question, _ in text.questions for name in NAME.findall(question)]
    for text in source:
        for question, answerable in text.questions:
            if not answerable or generator.random() > CHANGED:
                continue
            stems = read_question(question).stems
            closest = sorted(text.sentences, key=lambda held: -len(stems & read_sentence(held).places.keys()))[:2]
            strangers = generator.choice(source).sentences
            facts = (*closest, *generator.sample(strangers, min(len(strangers), generator.randint(0, 6))))
            for asked, answered in dict(_changes(question, closest, generator.choice(names))).items():
                yield Example("changed", part_of(text.document), asked, facts, counted(facts).rarity, answered)


def _changes(question: str, closest: Sequence[str], other_name: str) -> Iterator[tuple[str, bool]]:
    first, _, rest = question.partition(" ")
    found = NAME.search(question)
    changes = [
        f"{other.capitalize()} {rest}" for other in sorted(SWAPPED - {first.lower()}) if first.lower() in SWAPPED
    ]
    unanswered = [
        asked
        for asked in changes
        if not any(answer_places(read_question(asked), read_sentence(fact)) for fact in closest)
    ]
    if (
        found
        and read_question(question).kind is not Kind.YES_NO
        and not set(other_name.split()) & set(found[0].split())
    ):
        unanswered.append(question.replace(found[0], other_name))
    if unanswered:
        yield question, True
    yield from ((asked, False) for asked in unanswered)
    if found and any(found[0] in fact for fact in closest):
        asked = f"Where is {found[0]}?"
        placed = any(answer_places(read_question(asked), read_sentence(fact)) for fact in closest)
        told = re.compile(
            re.escape(found[0]) + r"\W+(?:is|was|lies|stands|sits|located|based)\b[^.,]*\b(?:in|at|near|on) "
        )
        if not placed or any(map(told.search, closest)):
            yield asked, placed


def nearest(question: str, sentences: tuple[str, ...], vectors: Vectors) -> list[Evidence]:
    """The sentences as evidence, closest first."""
    distances = 2.0 - 2.0 * vectors.matrix(sentences) @ vectors[question]
    return [
        Evidence(str(at), sentences[at], 1.0, float(distances[at]), float(distances[at]), None)
        for at in np.argsort(distances, kind="stable")[:DEPTH]
    ]


def fit(inputs: Floats, labels: Floats, weights: Floats) -> tuple[Floats, Floats, Floats, float]:
    """Small networks, averaged into one hidden layer: its weights and bias, and the weights and bias to the output."""
    drawn = np.random.default_rng(SEED).choice(len(labels), RESAMPLED, p=weights / weights.sum())
    networks = [
        MLPClassifier(
            (HIDDEN,),
            alpha=1.0,
            learning_rate_init=3e-3,
            batch_size=500,
            max_iter=25,
            early_stopping=True,
            random_state=SEED + number,
        ).fit(inputs[drawn], labels[drawn])
        for number in range(NETWORKS)
    ]
    return (
        np.concatenate([network.coefs_[0].T for network in networks]),
        np.concatenate([network.intercepts_[0] for network in networks]),
        np.concatenate([network.coefs_[1][:, 0] for network in networks]) / NETWORKS,
        float(np.mean([network.intercepts_[1][0] for network in networks])),
    )


def examples(data: Path) -> tuple[list[Example], list[Text]]:
    """Every example, and the texts that they were made from."""
    generator = random.Random(SEED)
    squad = texts(data / "train_squad2_backtranslated.jsonl.gz", 2, SQUAD_PASSAGES)
    shifts = texts(data / "spans_squadshifts.jsonl.gz", 2, SHIFTS_PASSAGES)
    natural = texts(data / "train_nq.jsonl.gz", 2)
    invented = texts(data / "train_repliqa.jsonl.gz", 2)
    answers = {row["question"]: row["answers"] for row in rows(data / "spans_squadshifts.jsonl.gz")}
    short = texts(data / "spans_qamr.jsonl.gz", 6)
    made = [
        *on_own_passage("squad2", squad),
        *on_own_passage("shifts", shifts),
        *on_own_passage("nq", natural),
        *on_own_passage("repliqa", invented),
        *on_longer_texts(squad, generator),
        *on_longer_texts(shifts, generator),
        *in_scopes(squad, generator),
        *in_scopes(shifts, generator),
        *in_scopes(short, generator),
        *in_few_facts(shifts, answers, generator),
        *changed([*squad, *shifts, *short], generator),
    ]
    return made, [*squad, *shifts, *natural, *invented, *short]


def main(data: Path, output: Path, cache: Path) -> None:
    table = json.dumps(background(data), ensure_ascii=False, indent=0)
    (output / "background.json").write_text(table + "\n", "utf-8")
    made, sources = examples(data)
    vectors = Vectors(OnnxEncoder(models_dir() / "minilm-l6-int8"), cache)
    vectors.add(sentence for text in sources for sentence in text.sentences)
    vectors.add(example.question for example in made)
    raw = np.array(
        [features(held.question, nearest(held.question, held.sentences, vectors), held.rarity) for held in made]
    )
    labels = np.array([example.answerable for example in made], float)
    kinds = np.array([example.kind for example in made])
    parts = np.array([example.part for example in made])
    weights = np.array([WEIGHTS[example.kind] for example in made])

    training = parts == "train"
    mean, scale = raw[training].mean(0), np.maximum(raw[training].std(0), 1e-3)
    inputs = (raw - mean) / scale
    hidden, hidden_bias, output_weights, bias = fit(inputs[training], labels[training], weights[training])
    logits = np.maximum(inputs @ hidden.T + hidden_bias, 0.0) @ output_weights + bias

    held = parts == "calibrate"
    platt = LogisticRegression(C=1e6).fit(logits[held, None], labels[held], sample_weight=weights[held])
    slope, offset = float(platt.coef_[0, 0]), float(platt.intercept_[0])
    scores = 1.0 / (1.0 + np.exp(-(slope * logits + offset)))
    threshold = choose(scores, labels, kinds, parts == "choose")
    report(scores, labels, kinds, parts != "train", threshold)
    model = {
        "name": "feature-probe-1",
        "threshold": threshold,
        "depth": DEPTH,
        "features": NAMES,
        "mean": mean.round(5).tolist(),
        "scale": scale.round(5).tolist(),
        "hidden": hidden.round(4).tolist(),
        "hidden_bias": hidden_bias.round(4).tolist(),
        "output": (slope * output_weights).round(5).tolist(),
        "bias": round(slope * bias + offset, 5),
    }
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in model.items())
    (output / "probe.json").write_text("{\n" + lines.replace("], [", "],\n  [") + "\n}\n")


def choose(scores: Floats, labels: Floats, kinds: NDArray[np.str_], chosen: NDArray[np.bool_]) -> float:
    """The lowest threshold with an accuracy within LIKE of the best, each kind of example counting the same."""

    def accuracy(threshold: float) -> float:
        right = (scores >= threshold) == (labels == 1.0)
        return float(np.mean([right[chosen & (kinds == kind)].mean() for kind in JUDGED]))

    accuracies = {step / 100: accuracy(step / 100) for step in range(20, 81)}
    return min(step for step, reached in accuracies.items() if reached >= max(accuracies.values()) - LIKE)


def report(scores: Floats, labels: Floats, kinds: NDArray[np.str_], held: NDArray[np.bool_], threshold: float) -> None:
    print(f"threshold {threshold}; on the parts that were not trained on:")
    for kind in JUDGED:
        these = held & (kinds == kind)
        area = roc_auc_score(labels[these], scores[these])
        passed = scores[these] >= threshold
        right = (passed == (labels[these] == 1.0)).mean()
        refused = 1.0 - passed[labels[these] == 1.0].mean()
        print(f"{kind:8} n {these.sum():6,}  AUROC {area:.3f}  accuracy {right:.3f}  answerable refused {refused:.3f}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
