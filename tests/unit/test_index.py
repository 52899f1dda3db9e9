"""The index against brute force: the hard gate's minimum is exact whatever the confidences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scopegate.domain import Invalid
from scopegate.knowledge.index import IndexKind, VectorIndex
from scopegate.settings import Settings

DIMENSION = 16
EXACT = IndexKind(DIMENSION, 1_000_000, "HNSW32", "efSearch=128")
GRAPH = IndexKind(DIMENSION, 0, "HNSW32", "efSearch=512")


def unit_vectors(seed: int, n: int) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).standard_normal((n, DIMENSION)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def brute_force(
    question: NDArray[np.float32], vectors: NDArray[np.float32], confidences: NDArray[np.float32], k: int
) -> list[float]:
    ratios: list[float] = (((vectors - question) ** 2).sum(1) / confidences).tolist()
    return sorted(ratios)[:k]


@pytest.mark.parametrize("kind", [EXACT, GRAPH], ids=["exact", "graph"])
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 400),
    k=st.integers(1, 8),
    lowest=st.sampled_from([1.0, 0.9, 0.3, 0.01]),
    removed=st.floats(0, 0.9),
)
def test_the_k_best_by_ratio_are_those_of_brute_force(
    kind: IndexKind, seed: int, n: int, k: int, lowest: float, removed: float
) -> None:
    rng = np.random.default_rng(seed)
    vectors = unit_vectors(seed, n)
    confidences = rng.uniform(lowest, 1, n).astype(np.float32)
    index = VectorIndex(kind, n)
    index.apply([], list(range(n)), vectors, confidences.tolist())
    gone = np.flatnonzero(rng.uniform(size=n) < removed)
    index.apply(gone.tolist(), [], vectors[:0], [])
    live = np.setdiff1d(np.arange(n), gone)
    question = unit_vectors(seed + 1, 1)[0]
    found = index.nearest(question, k)
    expected = brute_force(question, vectors[live], confidences[live], k)
    assert [near.distance / near.confidence for near in found] == pytest.approx(expected, abs=1e-4)
    assert {near.key for near in found} <= set(live.tolist())


def test_a_close_fact_of_low_confidence_loses_to_a_farther_one_however_many_stand_between() -> None:
    question = np.eye(DIMENSION, dtype=np.float32)[0]
    doubtful = np.tile(question, (5_000, 1)) + 0.01 * unit_vectors(1, 5_000)
    doubtful /= np.linalg.norm(doubtful, axis=1, keepdims=True)
    sure = (0.8 * question + 0.6 * np.eye(DIMENSION, dtype=np.float32)[1])[None]
    index = VectorIndex(EXACT)
    index.apply([], list(range(5_000)), doubtful.astype(np.float32), [1e-6] * 5_000)
    index.apply([], [9_999], sure, [1.0])
    assert index.nearest(question, 1)[0].key == 9_999


def test_a_graph_as_shipped_decides_as_brute_force_does_with_mixed_confidences() -> None:
    rng = np.random.default_rng(5)
    vectors = unit_vectors(5, 10_000)
    confidences = rng.choice([1.0, 0.7, 0.05], p=[0.5, 0.3, 0.2], size=len(vectors)).astype(np.float32)
    shipped = Settings()
    index = VectorIndex(IndexKind(DIMENSION, 0, shipped.index_factory, shipped.index_parameters), len(vectors))
    index.apply([], list(range(len(vectors))), vectors, confidences.tolist())
    misleading = 0
    for question in unit_vectors(6, 200):
        (expected,) = brute_force(question, vectors, confidences, 1)
        found = index.nearest(question, 1)[0]
        assert found.distance / found.confidence == pytest.approx(expected, rel=1e-4)
        misleading += index.closest(question, 1)[0].confidence < 0.1
    assert misleading > 10, "the closest fact was never a doubtful one: this shows nothing"


def test_an_empty_index_finds_nothing() -> None:
    index = VectorIndex(EXACT)
    assert index.nearest(unit_vectors(0, 1)[0], 4) == []
    assert index.closest(unit_vectors(0, 1)[0], 4) == []


def test_a_replaced_vector_is_found_where_it_is_now() -> None:
    old, new = unit_vectors(0, 2)
    index = VectorIndex(EXACT)
    index.apply([], [7], old[None], [1.0])
    index.apply([], [7], new[None], [0.5])
    ((key, distance, confidence),) = index.nearest(new, 4)
    assert (key, confidence) == (7, 0.5)
    assert distance == pytest.approx(0, abs=1e-6)
    assert len(index) == 1


def test_a_new_confidence_alone_takes_no_new_position() -> None:
    vectors = unit_vectors(0, 3)
    index = VectorIndex(EXACT)
    index.apply([], [1, 2, 3], vectors, [1.0, 1.0, 1.0])
    index.apply([], [2], vectors[1:2], [0.5])
    assert index.positions == 3
    assert {near.key: near.confidence for near in index.nearest(vectors[1], 3)}[2] == 0.5


@pytest.mark.parametrize("factory", ["HNSW32", "IVF4,SQ8,RFlat"])
def test_a_successor_holds_what_changed_while_it_was_made(factory: str) -> None:
    kind = IndexKind(DIMENSION, 100, factory, "")
    vectors = unit_vectors(3, 600)
    source = VectorIndex(kind)
    source.apply([], list(range(500)), vectors[:500], [1.0] * 500)
    assert source.wants_rebuild
    successor = source.successor()
    copied = source.lacking({})
    successor.apply([], list(copied), *source.copy(list(copied.values())))
    staged = source.stage([7], vectors[599:], [1.0])
    source.show([5, 6], staged, {7: 1.0})
    source.apply([], list(range(500, 599)), vectors[500:599], [1.0] * 99)
    source.apply([], [8], vectors[8:9], [0.25])
    last = source.lacking(copied)
    assert len(last) == 100
    successor.apply([], list(last), *source.copy(list(last.values())))
    successor.agree(source)
    assert not successor.wants_rebuild
    assert len(successor) == len(source) == 597
    assert successor.nearest(vectors[599], 1)[0].key == 7
    assert 5 not in successor
    confidences = {near.key: near.confidence for near in successor.closest(vectors[8], 5)}
    assert confidences[8] == 0.25


def test_what_is_staged_is_not_seen_until_it_is_shown() -> None:
    vectors = unit_vectors(0, 3)
    index = VectorIndex(EXACT)
    index.apply([], [1], vectors[:1], [1.0])
    staged = index.stage([1, 2], vectors[1:], [1.0, 0.5])
    assert [near.key for near in index.nearest(vectors[1], 3)] == [1]
    assert index.nearest(vectors[0], 1)[0].distance == pytest.approx(0, abs=1e-6)
    index.show([], staged, {1: 1.0, 2: 0.5})
    assert {near.key: near.confidence for near in index.nearest(vectors[1], 3)} == {1: 1.0, 2: 0.5}
    assert index.nearest(vectors[1], 1)[0] == pytest.approx((1, 0, 1.0), abs=1e-6)


def test_many_dead_make_it_want_a_rebuild() -> None:
    vectors = unit_vectors(0, 2_500)
    index = VectorIndex(EXACT)
    index.apply([], list(range(2_500)), vectors, [1.0] * 2_500)
    index.apply(list(range(1_000)), [], vectors[:0], [])
    assert not index.wants_rebuild
    index.apply(list(range(1_000, 1_500)), [], vectors[:0], [])
    assert index.wants_rebuild


@pytest.mark.parametrize("kind", [EXACT, GRAPH], ids=["exact", "graph"])
def test_saved_and_loaded_it_finds_the_same(kind: IndexKind, tmp_path: Path) -> None:
    vectors = unit_vectors(0, 200)
    index = VectorIndex(kind, 200)
    index.apply([], list(range(200)), vectors, np.linspace(0.1, 1, 200).tolist())
    index.apply([3], [], vectors[:0], [])
    index.save(tmp_path)
    loaded = VectorIndex.load(tmp_path, kind)
    for question in unit_vectors(9, 5):
        assert loaded.nearest(question, 4) == index.nearest(question, 4)
    loaded.apply([], [777], vectors[3:4], [1.0])
    assert loaded.nearest(vectors[3], 1)[0].key == 777


@pytest.mark.parametrize("factory", ["PQ4", "IVF4,SQ8", "nonsense"])
def test_an_index_without_exact_distances_is_refused(factory: str) -> None:
    with pytest.raises(Invalid, match=factory):
        IndexKind(DIMENSION, 0, factory, "").make(1)
