"""Read batches ahead in a thread while the model computes.

A thread instead of a process: reading (kernel) and copying (numpy) both release the GIL. A thread needs no extra
memory, cannot be killed separately, and its errors are raised in `next_batch`.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

from trainer.data.dataset import Dataset
from trainer.data.loader import Batch, Loader, LoaderState

PREFETCH_BATCHES = 2  # batches in the queue; a second one covers an occasional slow read

PACKINGS = {"blocks": "trainer.data.loader:BlockLoader", "documents": "trainer.data.packing:DocumentLoader"}
"""Module and class of the loaders, imported when one is chosen."""


def load_packing(name: str) -> Callable[..., Loader]:
    """Return a class of `PACKINGS`."""
    module, _, loader = PACKINGS[name].partition(":")
    return cast("Callable[..., Loader]", getattr(importlib.import_module(module), loader))


class PrefetchLoader:
    """A loader that reads ahead. Its state counts the batches that were returned, not those that were read.

    `pinned`: put batches into page-locked memory for asynchronous copies (`.to(device, non_blocking=True)`).
    """

    def __init__(self, loader: Loader, pinned: bool = False) -> None:
        self.waste = loader.waste
        self._loader, self._pinned = loader, pinned
        self._state = loader.state_dict()
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        self._queue: deque[Future[tuple[Batch, LoaderState]]] = deque()

    def next_batch(self) -> Batch:
        while len(self._queue) <= PREFETCH_BATCHES:
            self._queue.append(self._reader.submit(self._read_batch))
        batch, self._state = self._queue.popleft().result()
        return batch

    def state_dict(self) -> LoaderState:
        return self._state

    def load_state_dict(self, state: LoaderState) -> None:
        self._clear_queue()
        self._loader.load_state_dict(state)
        self._state = self._loader.state_dict()

    def close(self) -> None:
        """End the thread and drop the batches in the queue."""
        self._clear_queue()
        self._reader.shutdown()

    def _read_batch(self) -> tuple[Batch, LoaderState]:
        inputs, targets = self._loader.next_batch()
        if self._pinned:
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
        return (inputs, targets), self._loader.state_dict()

    def _clear_queue(self) -> None:
        for future in self._queue:
            if not future.cancel():
                future.exception()  # wait for the batch that is being read
        self._queue.clear()


def build_loader(
    dataset: Dataset,
    split: str,
    packing: str,
    batch: int,
    length: int,
    seed: int,
    rank: int = 0,
    ranks: int = 1,
    pinned: bool = False,
) -> PrefetchLoader:
    """Build the prefetching loader of a run. `packing` is a key of `PACKINGS`."""
    return PrefetchLoader(load_packing(packing)(dataset, split, batch, length, seed, rank, ranks), pinned)
