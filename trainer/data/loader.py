"""Batches of token sequences, in a random order that is computed: the whole state is a few numbers.

A split's tokens are cut into blocks of `length` steps, each with the token after it as the last target; the last block
is moved back so that it ends with the data, and nothing is left out. Every epoch visits each block once, in its own
order, a pure function of (seed, epoch). A block begins anywhere in a document and may hold several.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from trainer.data.dataset import Dataset, DatasetError
from trainer.data.permutation import permute
from trainer.data.shards import TokenStream

Batch = tuple[torch.Tensor, torch.Tensor]


class PackedLoader:
    """An endless run of batches over one split.

    With several ranks each takes its part of every step: together they see what one would with `batch * ranks`.
    """

    def __init__(
        self, dataset: Dataset, split: str, batch: int, length: int, seed: int, rank: int = 0, ranks: int = 1
    ) -> None:
        assert batch > 0
        assert 0 <= rank < ranks
        self.batch, self.length, self.seed, self.rank, self.ranks = batch, length, seed, rank, ranks
        self._stream = _stream(dataset, split, length)
        self.blocks = -(-(len(self._stream) - 1) // length)
        self.position = 0  # blocks handed out, over all epochs and ranks

    @property
    def epoch(self) -> int:
        return self.position // self.blocks

    def next(self) -> Batch:
        """(inputs [B, T], targets [B, T]), int64 on the CPU: targets are the inputs one step on."""
        first = self.position + self.rank * self.batch
        numbers = self._order(np.arange(first, first + self.batch, dtype=np.int64))
        self.position += self.batch * self.ranks
        last = len(self._stream) - self.length - 1
        return _batch(self._stream, [min(int(number) * self.length, last) for number in numbers], self.length)

    def state(self) -> dict[str, int]:
        """All that it takes to go on: small enough for a checkpoint's JSON."""
        return {"position": self.position, "seed": self.seed, "length": self.length, "blocks": self.blocks}

    def restore(self, state: dict[str, int]) -> None:
        """Go on exactly behind the last batch that the saved loader gave. Raise DatasetError if its data was other."""
        for name in ("seed", "length", "blocks"):
            if state.get(name) != getattr(self, name):
                raise DatasetError(
                    f"The saved place in the data has {name} {state.get(name)}, not {getattr(self, name)}"
                )
        self.position = state["position"]

    def _order(self, positions: np.ndarray) -> np.ndarray:
        """The block at each position; a batch may reach over the end of an epoch into the next."""
        epochs, places = np.divmod(positions, self.blocks)
        numbers = np.empty_like(places)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            numbers[chosen] = permute(places[chosen], self.blocks, seed=self.seed * 0x100000001B3 + int(epoch))
        return numbers


def in_order(dataset: Dataset, split: str, batch: int, length: int, limit: int | None = None) -> Iterator[Batch]:
    """The split once, from the front, without overlap: what dev loss is measured on. At most `limit` blocks.

    The last batch may be smaller; a rest shorter than a block is left out.
    """
    stream = _stream(dataset, split, length)
    starts = range(0, len(stream) - length, length)[:limit]
    for first in range(0, len(starts), batch):
        yield _batch(stream, starts[first : first + batch], length)


def _stream(dataset: Dataset, split: str, length: int) -> TokenStream:
    stream = dataset.stream(split)
    if length < 1 or len(stream) < length + 1:
        raise DatasetError(
            f"The {split} split has {len(stream)} tokens, too few for sequences of {length}: "
            "use shorter sequences or more text"
        )
    return stream


def _batch(stream: TokenStream, starts: list[int] | range, length: int) -> Batch:
    tokens = torch.from_numpy(np.stack([stream.read(start, length + 1) for start in starts]))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
