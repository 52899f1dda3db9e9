"""Dynamic batching: texts that wait at the same moment are encoded together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scopegate.domain import Overloaded, Unavailable
from scopegate.inference.encoder import Encoder

_STOPPED = "the embedder has stopped"


@dataclass(frozen=True, slots=True)
class _Waiting:
    tokens: Sequence[int]
    vector: asyncio.Future[NDArray[np.float32]]


class Batcher:
    """Runs an encoder on threads, in batches bounded by padded tokens and by how long a text waits for others.

    It waits only where the batch before held several: a caller who is alone gains nothing by waiting.
    Texts of requests go before bulk texts, and have none in their batch. limit bounds the former; bulk callers bound
    themselves by waiting for what they have handed in.
    """

    def __init__(self, encoder: Encoder, *, threads: int, batch_tokens: int, wait_ms: float, limit: int) -> None:
        self._encoder = encoder
        self._threads = threads
        self._batch_tokens = batch_tokens
        self._wait_s = wait_ms / 1000
        self._limit = limit
        self._requests: deque[_Waiting] = deque()
        self._bulk: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="encoder")
        self._workers: list[asyncio.Task[None]] = []
        self._in_company = False
        self._stopped = False

    @property
    def waiting(self) -> int:
        """How many texts wait for a batch."""
        return len(self._requests) + len(self._bulk)

    async def encode(self, tokens: Sequence[Sequence[int]], *, bulk: bool) -> NDArray[np.float32]:
        """Vectors of the tokenised texts, shape (n, d), n at least 1.

        Raises Overloaded where the queue is full, Unavailable where the batcher stopped or stops before it is done.
        """
        if self._stopped:
            raise Unavailable(_STOPPED)
        if not bulk and len(self._requests) + len(tokens) > self._limit:
            raise Overloaded("the embedder's queue is full")
        if not self._workers:
            self._workers = [asyncio.create_task(self._work()) for _ in range(self._threads)]
        loop = asyncio.get_running_loop()
        items = [_Waiting(text, loop.create_future()) for text in tokens]
        (self._bulk if bulk else self._requests).extend(items)
        self._arrived.set()
        try:
            return np.stack(await asyncio.gather(*(item.vector for item in items)))
        finally:
            for item in items:
                item.vector.cancel()

    async def stop(self) -> None:
        """Ends the workers; what still waits fails with Unavailable."""
        self._stopped = True
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        _fail((*self._requests, *self._bulk), Unavailable(_STOPPED))
        self._pool.shutdown()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if self._in_company and sum(len(item.tokens) for item in self._requests) < self._batch_tokens:
                await asyncio.sleep(self._wait_s)
            batch = self._take()
            self._in_company = len(batch) > 1
            if not self.waiting:
                self._arrived.clear()
            if not batch:
                continue
            try:
                vectors = await loop.run_in_executor(self._pool, self._encoder.encode, [item.tokens for item in batch])
            except asyncio.CancelledError:
                _fail(batch, Unavailable(_STOPPED))
                raise
            except Exception as error:  # noqa: BLE001 the callers get it, the worker lives on
                _fail(batch, error)
                continue
            for item, vector in zip(batch, vectors, strict=True):
                if not item.vector.done():
                    item.vector.set_result(vector)

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        longest = 0
        for queue in (self._requests, self._bulk):
            while queue:
                if queue[0].vector.done():
                    queue.popleft()
                    continue
                longest = max(longest, len(queue[0].tokens))
                if batch and longest * (len(batch) + 1) > self._batch_tokens:
                    return batch
                batch.append(queue.popleft())
            if batch:
                return batch
        return batch


def _fail(items: Iterable[_Waiting], error: Exception) -> None:
    for item in items:
        if not item.vector.done():
            item.vector.set_exception(error)
