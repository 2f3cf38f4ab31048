"""The data of a swarm run. A micro-batch's rows depend only on the run's seed, the step and its number.

There is no reading position to save. A repeated micro-batch has the same rows; each epoch has every row exactly once;
and a step has the rows that `dailytrain train` reads in that step with the same seed and batch size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainer.data.dataset import Dataset
from trainer.data.loader import IGNORE_INDEX, Batch, iterate_in_order, open_split, read_batch, shuffle_positions
from trainer.swarm.config import SwarmConfig


def compute_sample_ids(config: SwarmConfig, total: int, step: int, micro_batch: int) -> np.ndarray:
    """Return the row numbers of a micro-batch, `[rows]` int64 in `range(total)`. Each epoch has each number once."""
    assert 0 <= micro_batch < config.micro_batches
    first = (step * config.micro_batches + micro_batch) * config.micro_batch
    positions = np.arange(first, first + config.micro_batch, dtype=np.int64)
    return shuffle_positions(positions, total, config.seed)


class Batches:
    """The micro-batches of a run over a prepared dataset."""

    def __init__(self, dataset: Dataset, config: SwarmConfig) -> None:
        """Raise `DatasetError` if the text is too short for one row."""
        self.dataset, self.config = dataset, config
        self.stream = open_split(dataset, "train", config.sequence_length)
        self.rows = -(-(len(self.stream) - 1) // config.sequence_length)
        """Rows of an epoch. The last one overlaps the one before it, so that it ends with the text."""

    def get_sample_ids(self, step: int, micro_batch: int) -> np.ndarray:
        return compute_sample_ids(self.config, self.rows, step, micro_batch)

    def get_batch(self, step: int, micro_batch: int) -> Batch:
        """Return tokens and targets `[B, T]`, int64; a target may be `IGNORE_INDEX`."""
        length = self.config.sequence_length
        last = len(self.stream) - length - 1
        starts = [min(int(number) * length, last) for number in self.get_sample_ids(step, micro_batch)]
        return read_batch(self.stream, starts, length)

    def count_targets(self, step: int) -> int:
        """Return the number of learned targets of a step, the divisor of its sum of nats."""
        targets = (self.get_batch(step, micro_batch)[1] for micro_batch in range(self.config.micro_batches))
        return sum(int((y != IGNORE_INDEX).sum()) for y in targets)

    def iter_dev(self, rows: int) -> Iterator[Batch]:
        """Yield the first `rows` rows of dev in micro-batches."""
        return iterate_in_order(self.dataset, "dev", self.config.micro_batch, self.config.sequence_length, rows)
