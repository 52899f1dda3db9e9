"""Lookups at 10 thousand, 100 thousand and 1 million facts, against exact search in the same run.

    python -m benchmarks.index [SIZE ...]

The vectors are synthetic with neighbours like those of text: topics in a space of low rank, facts around them, and
questions around facts. alpha is laid at the median of the true scores, and half of the questions asked have one
within a tenth of it.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.report import console, milliseconds, resident_mb, table
from scopegate.knowledge.index import IndexKind, VectorIndex
from scopegate.settings import Settings

DIMENSION = 384
QUESTIONS = 2_000
PER_TOPIC = 40
RANK = 96

Vectors = NDArray[np.float32]


def unit(vectors: Vectors) -> Vectors:
    """The vectors at length one, in place."""
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def space(rng: np.random.Generator) -> Vectors:
    """The directions that texts differ in, (rank, d)."""
    return rng.standard_normal((RANK, DIMENSION)).astype(np.float32) / np.float32(np.sqrt(RANK))


def corpus(rng: np.random.Generator, basis: Vectors, size: int) -> tuple[Vectors, Vectors]:
    """Facts, (size, d), and their confidences."""
    topics = unit(rng.standard_normal((max(1, size // PER_TOPIC), RANK)).astype(np.float32) @ basis)
    facts = np.empty((size, DIMENSION), np.float32)
    for start in range(0, size, 50_000):
        stop = min(size, start + 50_000)
        topic = topics[rng.integers(len(topics), size=stop - start)]
        own = unit(rng.standard_normal((stop - start, RANK)).astype(np.float32) @ basis)
        facts[start:stop] = unit(topic + rng.uniform(0.4, 0.9, (stop - start, 1)).astype(np.float32) * own)
    confidences = rng.choice([1.0, 0.9, 0.7, 0.4], p=[0.7, 0.15, 0.1, 0.05], size=size).astype(np.float32)
    return facts, confidences


def questions(rng: np.random.Generator, basis: Vectors, facts: Vectors, n: int) -> Vectors:
    """Questions at every distance from some fact."""
    away = unit(rng.standard_normal((n, RANK)).astype(np.float32) @ basis)
    weight = rng.uniform(0.3, 2.5, (n, 1)).astype(np.float32)
    return unit(facts[rng.integers(len(facts), size=n)] + weight * away)


def exact_scores(asked: Vectors, facts: Vectors, confidences: Vectors) -> Vectors:
    """min S/C over all facts, for each question."""
    best = np.full(len(asked), np.inf, np.float32)
    for start in range(0, len(facts), 20_000):
        part = slice(start, start + 20_000)
        distances = np.maximum(2 - 2 * asked @ facts[part].T, 0)
        np.minimum(best, (distances / confidences[part]).min(axis=1), out=best)
    return best


def timed(search: Callable[[Vectors], object], asked: Vectors) -> list[float]:
    """Seconds of each search."""
    times = []
    for question in asked:
        start = time.perf_counter()
        search(question)
        times.append(time.perf_counter() - start)
    return times


def timed_exactly(facts: Vectors, asked: Vectors) -> list[float]:
    """Seconds of each exact search, by FAISS's flat index."""
    flat = faiss.IndexFlatL2(DIMENSION)
    flat.add(facts)
    return timed(lambda question: flat.search(question[None], 4), asked)


def measure(size: int) -> list[object]:
    """A row of the table."""
    rng = np.random.default_rng(size)
    settings = Settings()
    basis = space(rng)
    facts, confidences = corpus(rng, basis, size)
    candidates = questions(rng, basis, facts, 4 * QUESTIONS)
    scores = exact_scores(candidates, facts, confidences)
    alpha = float(np.median(scores))
    near = np.flatnonzero(np.abs(scores / alpha - 1) < 0.1)[: QUESTIONS // 2]
    others = np.setdiff1d(np.arange(len(candidates)), near)[: QUESTIONS - len(near)]
    chosen = np.concatenate([near, others])
    asked, truth = candidates[chosen], scores[chosen] < alpha

    exact = timed_exactly(facts, asked[:: max(1, size // 50_000)])
    gc.collect()

    kind = IndexKind(DIMENSION, settings.index_exact_limit, settings.index_factory, settings.index_parameters)
    before = resident_mb()
    start = time.perf_counter()
    index = VectorIndex(kind, size)
    for first in range(0, size, 10_000):
        part = slice(first, first + 10_000)
        keys = list(range(first, min(size, first + 10_000)))
        index.apply([], keys, facts[part], confidences[part].tolist())
    built = time.perf_counter() - start
    memory = resident_mb() - before

    found = timed(lambda question: index.nearest(question, 4), asked)
    decided = np.array(
        [min((n.distance / n.confidence for n in index.nearest(q, 4)), default=np.inf) < alpha for q in asked]
    )
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder))
        start = time.perf_counter()
        VectorIndex.load(Path(folder), kind)
        loaded = time.perf_counter() - start
    return [
        f"{size:,}",
        type(index.faiss).__name__.removeprefix("Index"),
        f"{alpha:.2f}",
        len(near),
        milliseconds(found, 50),
        milliseconds(found, 99),
        milliseconds(exact, 99),
        f"1/{np.percentile(exact, 99) / np.percentile(found, 99):.0f}",
        f"{(decided == truth).mean():.4f}",
        f"{memory * 1e6 / size:.0f}",
        f"{built:.1f}",
        f"{loaded:.2f}",
    ]


def main() -> None:
    """Measures each size given."""
    sizes = [int(size) for size in sys.argv[1:]] or [10_000, 100_000, 1_000_000]
    rows = []
    for size in sizes:
        rows.append(measure(size))
        console.print(*rows[-1])
    columns = [
        "facts", "index", "alpha", "near it", "p50 ms", "p99 ms", "exact p99 ms", "ratio p99",
        "same decisions", "bytes a fact", "build s", "load s",
    ]  # fmt: skip
    table(f"A lookup of k = 4 by S/C, {QUESTIONS:,} questions, mixed confidences", columns, rows)


if __name__ == "__main__":
    main()
