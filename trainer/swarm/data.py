"""Which rows of the text a micro-batch has: computed from the run's seed and its place in the run alone.

Nobody keeps a position. A micro-batch that is asked for again, by whomever, is the same one; each epoch has every row
exactly once; and a step has the rows that `dailytrain train` reads in that step with the same seed and batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainer.data.dataset import Dataset
from trainer.data.loader import IGNORE_INDEX, Batch, iterate_in_order, open_split, read_batch
from trainer.data.permutation import shuffle_positions
from trainer.swarm.config import SwarmConfig


def sample_ids(seed: int, step: int, micro_batch: int, *, micro_batches: int, rows: int, total: int) -> np.ndarray:
    """Return the numbers, from 0 to before `total`, of the rows of a micro-batch: `[rows]` int64.

    `micro_batches` is how many a step has. Within `total` rows that follow one another in a run, none comes twice.
    """
    assert 0 <= micro_batch < micro_batches
    first = (step * micro_batches + micro_batch) * rows
    return shuffle_positions(np.arange(first, first + rows, dtype=np.int64), total, seed)


class Batches:
    """The micro-batches of a run over a prepared dataset."""

    def __init__(self, dataset: Dataset, config: SwarmConfig) -> None:
        """Raise `DatasetError` if the text is too short for one row."""
        self.dataset, self.config = dataset, config
        self.stream = open_split(dataset, "train", config.sequence_length)
        self.rows = -(-(len(self.stream) - 1) // config.sequence_length)
        """Rows of an epoch; the last one is moved back to end with the text."""

    def ids(self, step: int, micro_batch: int) -> np.ndarray:
        config = self.config
        return sample_ids(
            config.seed,
            step,
            micro_batch,
            micro_batches=config.micro_batches,
            rows=config.micro_batch,
            total=self.rows,
        )

    def tokens(self, step: int, micro_batch: int) -> Batch:
        """Return tokens and targets `[B, T]`, int64; a target may be `IGNORE_INDEX`."""
        length = self.config.sequence_length
        last = len(self.stream) - length - 1
        starts = [min(int(number) * length, last) for number in self.ids(step, micro_batch)]
        return read_batch(self.stream, starts, length)

    def count(self, step: int) -> int:
        """Return how many targets of a step are learned: what its sum of nats is divided by."""
        targets = (self.tokens(step, micro_batch)[1] for micro_batch in range(self.config.micro_batches))
        return sum(int((y != IGNORE_INDEX).sum()) for y in targets)

    def dev(self, rows: int) -> Iterator[Batch]:
        """Yield so many rows of dev, always the same ones, in micro-batches: what evaluations are made on."""
        return iterate_in_order(self.dataset, "dev", self.config.micro_batch, self.config.sequence_length, rows)


class SameBatch(Batches):
    """The first step's rows in every step: a check that training works. A model that can learn knows them by heart."""

    def ids(self, step: int, micro_batch: int) -> np.ndarray:
        return super().ids(0, micro_batch)
