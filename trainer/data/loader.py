"""Batches of token sequences in a shuffled order that is computed, so that a loader's state is a few numbers.

The tokens of a split are cut into blocks of `length` tokens plus the last target. The last block is moved back to end
with the data, so no token is left out. Each epoch visits every block once, in an order that is a pure function of
(seed, epoch). A block may start inside a document and may contain several.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, cast

import numpy as np
import torch

from trainer.data.dataset import Dataset
from trainer.data.shards import PROMPT_BIT, TokenStream
from trainer.errors import DatasetError

# --- a shuffle that needs no memory: positions are computed, not stored -----------------------------------------------
# A Feistel network permutes the numbers with an even count of bits for any round function. Results outside the range
# are permuted again until they are inside (cycle walking), which is still a permutation. The result is a pure function
# of (seed, size, number), the same on every machine.


ROUNDS = 6
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def permute(numbers: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return the new positions of `numbers` (int64, all in [0, size)) in the shuffle of [0, size) by `seed`."""
    half = max(1, (max(1, size - 1).bit_length() + 1) // 2)
    start = np.array([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
    keys = _mix(np.arange(1, ROUNDS + 1, dtype=np.uint64) * _GOLDEN ^ _mix(start))
    values = numbers.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        values[outside] = _feistel(values[outside], half, keys)
        outside = values >= size
    return values.astype(np.int64)


def shuffle_positions(positions: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Return the numbers at these positions of a sequence of epochs, each of which is its own shuffle of [0, size)."""
    epochs, places = np.divmod(positions, size)
    numbers = np.empty_like(places)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        numbers[chosen] = permute(places[chosen], size, seed=seed * 0x100000001B3 + int(epoch))
    return numbers


def _feistel(values: np.ndarray, half: int, keys: np.ndarray) -> np.ndarray:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return left << shift | right


def _mix(values: np.ndarray) -> np.ndarray:
    """splitmix64's finalizer: every bit of the result depends on every bit that went in."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


IGNORE_INDEX = -100  # the target of prompt tokens, which carry no loss (`ignore_index` of cross-entropy)

Batch = tuple[torch.Tensor, torch.Tensor]
LoaderState = dict[str, Any]  # a position in the data, in plain JSON values


class Loader(Protocol):
    """An endless sequence of batches that resumes at the exact token."""

    waste: float  # share of the tokens that are left out

    def next_batch(self) -> Batch:
        """Return inputs and targets, both [B, T] int64 on the CPU. Targets are the next tokens or IGNORE_INDEX."""

    def state_dict(self) -> LoaderState:
        """Return what is needed to continue after the last batch."""

    def load_state_dict(self, state: LoaderState) -> None:
        """Continue after the last batch of the saved loader. Raise DatasetError for the state of other data."""


class SplitLoader:
    """The settings and the position of a loader of one split. Subclasses add `next_batch`.

    Each of several ranks reads its part of every step; together they read what one rank with `batch * ranks` would.
    """

    waste = 0.0
    DATA_FIELDS: tuple[str, ...]  # attributes that identify the data of a position

    def __init__(
        self, dataset: Dataset, split: str, batch: int, length: int, seed: int, rank: int = 0, ranks: int = 1
    ) -> None:
        assert batch > 0
        assert 0 <= rank < ranks
        self.batch, self.length, self.seed, self.rank, self.ranks = batch, length, seed, rank, ranks
        self._stream = open_split(dataset, split, length)
        self.position = 0  # rows returned so far, over all epochs and ranks

    def state_dict(self) -> LoaderState:
        return {"position": self.position, **{name: getattr(self, name) for name in self.DATA_FIELDS}}

    def load_state_dict(self, state: LoaderState) -> None:
        for name in self.DATA_FIELDS:
            if state.get(name) != getattr(self, name):
                expected = getattr(self, name)
                raise DatasetError(f"The saved position in the data has {name} {state.get(name)}, not {expected}")
        self.position = state["position"]


class BlockLoader(SplitLoader):
    """Batches of blocks of one split, see the module's docstring."""

    DATA_FIELDS = ("seed", "length", "blocks")

    @property
    def blocks(self) -> int:
        return -(-(len(self._stream) - 1) // self.length)

    @property
    def epoch(self) -> int:
        return self.position // self.blocks

    def next_batch(self) -> Batch:
        first = self.position + self.rank * self.batch
        numbers = shuffle_positions(np.arange(first, first + self.batch, dtype=np.int64), self.blocks, self.seed)
        self.position += self.batch * self.ranks
        last = len(self._stream) - self.length - 1
        return read_batch(self._stream, [min(int(number) * self.length, last) for number in numbers], self.length)


def iterate_in_order(
    dataset: Dataset, split: str, batch: int, length: int, limit: int | None = None
) -> Iterator[Batch]:
    """Yield the blocks of a split in order, at most `limit`, for measuring the dev loss.

    The last batch may be smaller. A remainder shorter than a block is left out.
    """
    stream = open_split(dataset, split, length)
    starts = range(0, len(stream) - length, length)[:limit]
    for first in range(0, len(starts), batch):
        yield read_batch(stream, starts[first : first + batch], length)


def open_split(dataset: Dataset, split: str, length: int) -> TokenStream:
    """Open a split. Raise DatasetError if it is too short for one row."""
    stream = dataset.open_stream(split)
    if length < 1 or len(stream) < length + 1:
        raise DatasetError(
            f"The {split} split has {len(stream)} tokens, too few for sequences of {length}: "
            "use shorter sequences or more text"
        )
    return stream


def read_batch(stream: TokenStream, starts: list[int] | range, length: int) -> Batch:
    return build_batch(np.stack([stream.read_tokens(start, length + 1) for start in starts]))


def build_batch(rows: np.ndarray) -> Batch:
    """Split rows [B, T + 1], in which tokens may have `PROMPT_BIT`, into inputs and targets."""
    targets = rows
    if (prompt := rows >= PROMPT_BIT).any():
        rows, targets = np.where(prompt, rows - PROMPT_BIT, rows), np.where(prompt, IGNORE_INDEX, rows)
    return torch.from_numpy(rows)[:, :-1].contiguous(), torch.from_numpy(targets)[:, 1:].contiguous()


# --- reading ahead ----------------------------------------------------------------------------------------------------
# A thread instead of a process: reading (kernel) and copying (numpy) both release the GIL. A thread needs no extra
# memory, cannot be killed separately, and its errors are raised in `next_batch`.


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
