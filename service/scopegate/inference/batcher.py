"""Dynamic batching: inputs of a model that wait at the same moment are run together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from scopegate.domain import Overloaded, Unavailable

Input = TypeVar("Input", bound=Sized)
Output = TypeVar("Output")


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Input, Output]):
    given: Input
    found: asyncio.Future[Output]


class Batcher(Generic[Input, Output]):
    """Runs a model on threads, in batches bounded by padded tokens and by how long an input waits for others.

    It waits only where the batch before held several: a caller who is alone gains nothing by waiting.
    Inputs of requests go before bulk inputs, and have none in their batch. limit bounds the former; bulk callers bound
    themselves by waiting for what they have handed in.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Input]], Iterable[Output]],
        name: str,
        *,
        threads: int,
        batch_tokens: int,
        wait_ms: float,
        limit: int,
    ) -> None:
        """run: an output for each input, whose length is its tokens; called on several threads. name: the model's."""
        self._run = run
        self._name = name
        self._threads = threads
        self._batch_tokens = batch_tokens
        self._wait_s = wait_ms / 1000
        self._limit = limit
        self._requests: deque[_Waiting[Input, Output]] = deque()
        self._bulk: deque[_Waiting[Input, Output]] = deque()
        self._arrived = asyncio.Event()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._workers: list[asyncio.Task[None]] = []
        self._in_company = False
        self._stopped = False

    @property
    def waiting(self) -> int:
        """How many inputs wait for a batch."""
        return len(self._requests) + len(self._bulk)

    async def outputs(self, given: Sequence[Input], *, bulk: bool) -> list[Output]:
        """The model's output for each input.

        Raises Overloaded where the queue is full, Unavailable where the batcher stopped or stops before it is done.
        """
        if self._stopped:
            raise self._has_stopped()
        if not bulk and len(self._requests) + len(given) > self._limit:
            raise Overloaded(f"the {self._name}'s queue is full")
        if not self._workers:
            self._workers = [asyncio.create_task(self._work()) for _ in range(self._threads)]
        loop = asyncio.get_running_loop()
        items: list[_Waiting[Input, Output]] = [_Waiting(each, loop.create_future()) for each in given]
        (self._bulk if bulk else self._requests).extend(items)
        self._arrived.set()
        try:
            return list(await asyncio.gather(*(item.found for item in items)))
        finally:
            for item in items:
                item.found.cancel()

    async def stop(self) -> None:
        """Ends the workers; what still waits fails with Unavailable."""
        self._stopped = True
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        _fail((*self._requests, *self._bulk), self._has_stopped())
        self._pool.shutdown()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if self._in_company and sum(len(item.given) for item in self._requests) < self._batch_tokens:
                await asyncio.sleep(self._wait_s)
            batch = self._take()
            self._in_company = len(batch) > 1
            if not self.waiting:
                self._arrived.clear()
            if not batch:
                continue
            try:
                outputs = await loop.run_in_executor(self._pool, self._outputs, [item.given for item in batch])
            except asyncio.CancelledError:
                _fail(batch, self._has_stopped())
                raise
            except Exception as error:  # noqa: BLE001 the callers get it, the worker lives on
                _fail(batch, error)
                continue
            for item, output in zip(batch, outputs, strict=True):
                if not item.found.done():
                    item.found.set_result(output)

    def _outputs(self, given: Sequence[Input]) -> list[Output]:
        found = list(self._run(given))
        if len(found) != len(given):
            raise ValueError(f"the {self._name} gave {len(found)} outputs for {len(given)} inputs")
        return found

    def _has_stopped(self) -> Unavailable:
        return Unavailable(f"the {self._name} has stopped")

    def _take(self) -> list[_Waiting[Input, Output]]:
        batch: list[_Waiting[Input, Output]] = []
        longest = 0
        for queue in (self._requests, self._bulk):
            while queue:
                if queue[0].found.done():
                    queue.popleft()
                    continue
                longest = max(longest, len(queue[0].given))
                if batch and longest * (len(batch) + 1) > self._batch_tokens:
                    return batch
                batch.append(queue.popleft())
            if batch:
                return batch
        return batch


def _fail(items: Iterable[_Waiting[Any, Any]], error: Exception) -> None:
    for item in items:
        if not item.found.done():
            item.found.set_exception(error)
