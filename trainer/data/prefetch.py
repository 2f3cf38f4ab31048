"""Batches read ahead, in a thread, while the model works on the last ones.

A thread and not a process: reading waits in the kernel and copying is done by numpy, both without Python's lock; it
needs no memory of its own, cannot be killed alone, and whatever goes wrong in it is raised where its batch is wanted.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from trainer.data.dataset import Dataset
from trainer.data.loader import Batch, Loader, PackedLoader, State
from trainer.data.packing import DocumentLoader

AHEAD = 2
"""Batches that wait: one would do for even steps, a second bridges a slow read."""

PACKINGS: dict[str, type[PackedLoader] | type[DocumentLoader]] = {"blocks": PackedLoader, "documents": DocumentLoader}


class Prefetched:
    """A loader whose batches are there when asked for. Its state is that of the batches handed out, not of those read.

    `pinned`: in page-locked memory, from which a GPU copies by itself (`.to(device, non_blocking=True)`).
    """

    def __init__(self, loader: Loader, pinned: bool = False) -> None:
        self.waste = loader.waste
        self._loader, self._pinned = loader, pinned
        self._state = loader.state()
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        self._ahead: deque[Future[tuple[Batch, State]]] = deque()

    def next(self) -> Batch:
        while len(self._ahead) <= AHEAD:
            self._ahead.append(self._reader.submit(self._read))
        batch, self._state = self._ahead.popleft().result()
        return batch

    def state(self) -> State:
        return self._state

    def restore(self, state: State) -> None:
        self._drop()
        self._loader.restore(state)
        self._state = self._loader.state()

    def close(self) -> None:
        """End the thread; what was read ahead is forgotten."""
        self._drop()
        self._reader.shutdown()

    def _read(self) -> tuple[Batch, State]:
        inputs, targets = self._loader.next()
        if self._pinned:
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
        return (inputs, targets), self._loader.state()

    def _drop(self) -> None:
        for future in self._ahead:
            if not future.cancel():
                future.exception()  # waits for the one that is being read
        self._ahead.clear()


def loader(
    dataset: Dataset,
    split: str,
    packing: str,
    batch: int,
    length: int,
    seed: int,
    rank: int = 0,
    ranks: int = 1,
    pinned: bool = False,
) -> Prefetched:
    """Return a run's loader: rows cut as `packing` says, read ahead."""
    return Prefetched(PACKINGS[packing](dataset, split, batch, length, seed, rank, ranks), pinned)
