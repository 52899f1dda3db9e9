"""The encoder, the batcher and the cache in front of them."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from scopegate.domain import Invalid, Overloaded, Unavailable
from scopegate.inference.batcher import Batcher
from scopegate.inference.embedder import SLICE, Embedder
from scopegate.inference.encoder import MAX_TOKENS, Encoder, load_encoder
from scopegate.settings import Settings, models_dir

Vectors = Batcher[Sequence[int], NDArray[np.float32]]


class SlowEncoder:
    """Says what batches it was given, and waits to be let on."""

    fingerprint = "slow"
    dimension = 1

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Semaphore(0)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        return [[len(text)] * len(text) for text in texts]

    def encode(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        self.batches.append([len(text) for text in tokens])
        assert self.go.acquire(timeout=5)
        if any(text[0] == 13 for text in tokens):
            raise RuntimeError("broken")
        return np.asarray([[text[0]] for text in tokens], np.float32)


def batcher(encoder: SlowEncoder, *, tokens: int = 100, limit: int = 10, wait_ms: float = 0) -> Vectors:
    return Batcher(encoder.encode, "embedder", threads=1, batch_tokens=tokens, wait_ms=wait_ms, limit=limit)


async def started(encoder: SlowEncoder, batches: int) -> None:
    async with asyncio.timeout(5):
        while len(encoder.batches) < batches:
            await asyncio.sleep(0.001)


class TestEncoder:
    def test_vectors_have_unit_length_and_meaning(self, encoder: Encoder) -> None:
        vectors = encoder.encode(encoder.tokens(["How old is the oak?", "The oak is 300 years old.", "Tea is hot."]))
        assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
        distances = ((vectors[1:] - vectors[0]) ** 2).sum(1)
        assert distances[0] < 0.6 < 1.5 < distances[1]

    def test_a_vector_does_not_depend_on_its_neighbours(self, encoder: Encoder) -> None:
        texts = ["Short.", "A sentence of middling length about rivers.", "word " * 200, "Числа и буквы, 漢字, 42!"]
        alone = np.concatenate([encoder.encode(encoder.tokens([text])) for text in texts])
        assert np.abs(encoder.encode(encoder.tokens(texts)) - alone).max() < 1e-5

    def test_long_texts_are_cut(self, encoder: Encoder) -> None:
        assert len(encoder.tokens(["word " * 5_000])[0]) == MAX_TOKENS

    def test_an_unknown_name_is_said(self) -> None:
        with pytest.raises(Invalid, match="'nothing'"):
            load_encoder("nothing", models_dir())


class TestBatcher:
    async def test_texts_that_wait_together_run_together_within_the_token_bound(self) -> None:
        encoder = SlowEncoder()
        queue = batcher(encoder, tokens=8)
        calls = [asyncio.create_task(queue.outputs([[n] * n], bulk=False)) for n in (1, 2, 2, 4, 4)]
        await started(encoder, 1)
        for _ in range(5):
            encoder.go.release()
        vectors = await asyncio.gather(*calls)
        assert [float(vector[0]) for (vector,) in vectors] == [1, 2, 2, 4, 4]
        assert all(len(batch) * max(batch) <= 8 for batch in encoder.batches)
        assert len(encoder.batches) < 5
        await queue.stop()

    async def test_requests_go_before_bulk(self) -> None:
        encoder = SlowEncoder()
        queue = batcher(encoder, tokens=4)
        first = asyncio.create_task(queue.outputs([[1]], bulk=False))
        await started(encoder, 1)
        bulk = asyncio.create_task(queue.outputs([[4] * 4] * 2, bulk=True))
        await asyncio.sleep(0)
        late = asyncio.create_task(queue.outputs([[3] * 3], bulk=False))
        await asyncio.sleep(0)
        for _ in range(4):
            encoder.go.release()
        await asyncio.gather(first, bulk, late)
        assert encoder.batches == [[1], [3], [4], [4]]
        await queue.stop()

    async def test_a_batch_of_requests_takes_no_bulk(self) -> None:
        encoder = SlowEncoder()
        queue = batcher(encoder)
        first = asyncio.create_task(queue.outputs([[1]], bulk=False))
        await started(encoder, 1)
        bulk = asyncio.create_task(queue.outputs([[4] * 4] * 2, bulk=True))
        await asyncio.sleep(0)
        late = asyncio.create_task(queue.outputs([[3] * 3], bulk=False))
        await asyncio.sleep(0)
        for _ in range(3):
            encoder.go.release()
        await asyncio.gather(first, bulk, late)
        assert encoder.batches == [[1], [3], [4, 4]]
        await queue.stop()

    async def test_a_stop_leaves_nobody_waiting(self) -> None:
        encoder = SlowEncoder()
        queue = batcher(encoder)
        calls = [asyncio.create_task(queue.outputs([[1]], bulk=False))]
        await started(encoder, 1)
        calls += [asyncio.create_task(queue.outputs([[2]], bulk=bulk)) for bulk in (False, True)]
        await asyncio.sleep(0)
        encoder.go.release()
        await queue.stop()
        async with asyncio.timeout(1):
            ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(end) for end in ends] == [Unavailable] * 3
        with pytest.raises(Unavailable):
            await queue.outputs([[3]], bulk=False)

    async def test_a_full_queue_refuses_at_once_and_then_recovers(self) -> None:
        encoder = SlowEncoder()
        queue = batcher(encoder, limit=2)
        running = asyncio.create_task(queue.outputs([[1]], bulk=False))
        await started(encoder, 1)
        waiting = asyncio.create_task(queue.outputs([[1], [1]], bulk=False))
        await asyncio.sleep(0)
        assert queue.waiting == 2
        with pytest.raises(Overloaded):
            await queue.outputs([[1]], bulk=False)
        for _ in range(3):
            encoder.go.release()
        await asyncio.gather(running, waiting)
        assert (await queue.outputs([[2, 2]], bulk=False))[0][0] == 2
        await queue.stop()

    async def test_what_nobody_waits_for_any_more_is_not_run(self) -> None:
        encoder = SlowEncoder()
        queue = batcher(encoder)
        running = asyncio.create_task(queue.outputs([[1]], bulk=False))
        await started(encoder, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await queue.outputs([[2, 2]], bulk=False)
        for _ in range(2):
            encoder.go.release()
        await running
        await queue.outputs([[3, 3, 3]], bulk=False)
        assert encoder.batches == [[1], [3]]
        await queue.stop()

    async def test_a_failure_reaches_its_callers_and_the_worker_lives_on(self) -> None:
        encoder = SlowEncoder()
        queue = batcher(encoder)
        encoder.go.release()
        with pytest.raises(RuntimeError, match="broken"):
            await queue.outputs([[13]], bulk=False)
        encoder.go.release()
        assert (await queue.outputs([[1]], bulk=False))[0][0] == 1
        await queue.stop()

    async def test_texts_in_company_wait_for_others_and_a_lone_one_does_not(self) -> None:
        encoder = SlowEncoder()
        queue = batcher(encoder, wait_ms=200)
        for _ in range(4):
            encoder.go.release()
        await asyncio.wait_for(queue.outputs([[1]], bulk=False), 0.15)
        await asyncio.wait_for(queue.outputs([[1], [2, 2]], bulk=False), 0.15)
        first = asyncio.create_task(queue.outputs([[3] * 3], bulk=False))
        await asyncio.sleep(0.01)
        await asyncio.gather(first, queue.outputs([[4] * 4], bulk=False))
        assert encoder.batches == [[1], [1, 2], [3, 4]]
        await queue.stop()


class TestEmbedder:
    async def test_rows_follow_texts_also_repeated_and_remembered_ones(self, embedder: Embedder) -> None:
        await embedder.embed(["b"])
        vectors = await embedder.embed(["a longer text", "b", "a longer text", "c"])
        alone = [(await embedder.embed([text], bulk=True))[0] for text in ("a longer text", "b", "a longer text", "c")]
        assert np.abs(vectors - np.stack(alone)).max() < 1e-5

    async def test_a_remembered_text_is_not_encoded_again(self) -> None:
        encoder = SlowEncoder()
        embedder = Embedder(encoder, Settings(embed_threads=1, embed_cache=2))
        for _ in range(4):
            encoder.go.release()
        await embedder.embed(["a"])
        await embedder.embed(["a"])
        assert len(encoder.batches) == 1
        await embedder.embed(["bb"])
        await embedder.embed(["ccc"])
        await embedder.embed(["a"])
        assert len(encoder.batches) == 4
        await embedder.stop()

    async def test_a_remembered_vector_holds_no_other_in_memory(self, encoder: Encoder) -> None:
        embedder = Embedder(encoder, Settings(embed_threads=1, embed_cache=1))
        await embedder.embed(["warm up"])
        tracemalloc.start()
        try:
            size = (await embedder.embed([f"Pier {n}." for n in range(SLICE)])).nbytes
            arrays = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
            held = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([arrays]).traces)
        finally:
            tracemalloc.stop()
            await embedder.stop()
        assert size / SLICE <= held < size / 4

    async def test_bulk_texts_are_not_remembered(self) -> None:
        encoder = SlowEncoder()
        embedder = Embedder(encoder, Settings(embed_threads=1))
        for _ in range(2):
            encoder.go.release()
        await embedder.embed(["a"], bulk=True)
        await embedder.embed(["a"], bulk=True)
        assert len(encoder.batches) == 2
        await embedder.stop()

    async def test_no_texts_no_vectors(self, embedder: Embedder) -> None:
        assert (await embedder.embed([])).shape == (0, 384)


async def test_a_model_that_gives_too_little_fails_its_callers_and_no_others() -> None:
    def run(given: Sequence[str]) -> list[str]:
        return [text for text in given if text != "lost"]

    batcher: Batcher[str, str] = Batcher(run, "model", threads=1, batch_tokens=100, wait_ms=0, limit=10)
    with pytest.raises(ValueError, match="0 outputs for 1 inputs"):
        await batcher.outputs(["lost"], bulk=False)
    assert await batcher.outputs(["found"], bulk=False) == ["found"]
    await batcher.stop()
