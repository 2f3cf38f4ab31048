"""Batches of token sequences in a shuffled order that is computed, so that a loader's state is a few numbers.

The tokens of a split are cut into blocks of `length` tokens plus the last target. The last block is moved back to end
with the data, so no token is left out. Each epoch visits every block once, in an order that is a pure function of
(seed, epoch). A block may start inside a document and may contain several.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch

from trainer.data.dataset import Dataset
from trainer.data.errors import DatasetError
from trainer.data.permutation import shuffle_positions
from trainer.data.shards import PROMPT_BIT, TokenStream

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
