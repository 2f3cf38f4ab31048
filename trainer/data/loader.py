"""Batches of token sequences, in a random order that is computed: the whole state is a few numbers.

A split's tokens are cut into blocks of `length` steps, each with the token after it as the last target; the last block
is moved back so that it ends with the data, and nothing is left out. Every epoch visits each block once, in its own
order, a pure function of (seed, epoch). A block begins anywhere in a document and may hold several.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch

from trainer.data.dataset import Dataset, DatasetError
from trainer.data.permutation import shuffled
from trainer.data.shards import GIVEN, TokenStream

NOT_LEARNED = -100
"""In place of a target that no loss is taken of (cross-entropy's `ignore_index`): a part of a prompt."""

Batch = tuple[torch.Tensor, torch.Tensor]
State = dict[str, Any]
"""A place in the data: small, of plain JSON values."""


class Loader(Protocol):
    """An endless run of batches that can be left and taken up again, to the token."""

    waste: float
    """The share of the text's tokens that rows leave out."""

    def next(self) -> Batch:
        """(inputs [B, T], targets [B, T]), int64 on the CPU: targets are the inputs one step on, or NOT_LEARNED."""

    def state(self) -> State:
        """All that it takes to go on behind the last batch."""

    def restore(self, state: State) -> None:
        """Go on exactly behind the last batch that the saved loader gave. Raise DatasetError if its data was other."""


class PackedLoader:
    """An endless run of batches over one split.

    With several ranks each takes its part of every step: together they see what one would with `batch * ranks`.
    """

    waste = 0.0

    def __init__(
        self, dataset: Dataset, split: str, batch: int, length: int, seed: int, rank: int = 0, ranks: int = 1
    ) -> None:
        assert batch > 0
        assert 0 <= rank < ranks
        self.batch, self.length, self.seed, self.rank, self.ranks = batch, length, seed, rank, ranks
        self._stream = stream_of(dataset, split, length)
        self.blocks = -(-(len(self._stream) - 1) // length)
        self.position = 0  # blocks handed out, over all epochs and ranks

    @property
    def epoch(self) -> int:
        return self.position // self.blocks

    def next(self) -> Batch:
        first = self.position + self.rank * self.batch
        numbers = shuffled(np.arange(first, first + self.batch, dtype=np.int64), self.blocks, self.seed)
        self.position += self.batch * self.ranks
        last = len(self._stream) - self.length - 1
        return batch_of(self._stream, [min(int(number) * self.length, last) for number in numbers], self.length)

    def state(self) -> State:
        return {"position": self.position, "seed": self.seed, "length": self.length, "blocks": self.blocks}

    def restore(self, state: State) -> None:
        same_data(state, {name: getattr(self, name) for name in ("seed", "length", "blocks")})
        self.position = state["position"]


def same_data(state: State, mine: State) -> None:
    """Raise DatasetError if a saved place is one in other data than this loader's."""
    for name, value in mine.items():
        if state.get(name) != value:
            raise DatasetError(f"The saved place in the data has {name} {state.get(name)}, not {value}")


def in_order(dataset: Dataset, split: str, batch: int, length: int, limit: int | None = None) -> Iterator[Batch]:
    """The split once, from the front, without overlap: what dev loss is measured on. At most `limit` blocks.

    The last batch may be smaller; a rest shorter than a block is left out.
    """
    stream = stream_of(dataset, split, length)
    starts = range(0, len(stream) - length, length)[:limit]
    for first in range(0, len(starts), batch):
        yield batch_of(stream, starts[first : first + batch], length)


def stream_of(dataset: Dataset, split: str, length: int) -> TokenStream:
    """Open a split; raise DatasetError if it is too short for one row."""
    stream = dataset.stream(split)
    if length < 1 or len(stream) < length + 1:
        raise DatasetError(
            f"The {split} split has {len(stream)} tokens, too few for sequences of {length}: "
            "use shorter sequences or more text"
        )
    return stream


def batch_of(stream: TokenStream, starts: list[int] | range, length: int) -> Batch:
    return in_and_out(np.stack([stream.read(start, length + 1) for start in starts]))


def in_and_out(rows: np.ndarray) -> Batch:
    """Inputs and targets of rows `[B, T + 1]`, in which tokens may be `GIVEN`."""
    learned = rows
    if (given := rows >= GIVEN).any():
        rows, learned = np.where(given, rows - GIVEN, rows), np.where(given, NOT_LEARNED, rows)
    return torch.from_numpy(rows)[:, :-1].contiguous(), torch.from_numpy(learned)[:, 1:].contiguous()
