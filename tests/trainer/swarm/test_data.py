"""Micro-batches are reproducible, and every row comes once per epoch."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.swarm_chain import build_tiny_config
from trainer.data.dataset import Dataset
from trainer.data.loader import BlockLoader
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches, compute_sample_ids


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**62), st.integers(1, 6), st.integers(1, 5), st.integers(1, 120), st.integers(0, 50))
def test_epoch_has_every_sample_exactly_once(seed: int, micro_batches: int, rows: int, total: int, epoch: int) -> None:
    config = SwarmConfig(
        arch="gpt", model={}, stages=1, steps=1, seed=seed, micro_batches=micro_batches, micro_batch=rows
    )
    step_rows = micro_batches * rows
    first, stop = epoch * total, (epoch + 1) * total
    seen = {
        (step * micro_batches + micro_batch) * rows + row: number
        for step in range(first // step_rows, -(-stop // step_rows))
        for micro_batch in range(micro_batches)
        for row, number in enumerate(compute_sample_ids(config, total, step, micro_batch))
    }
    assert sorted(seen[position] for position in range(first, stop)) == list(range(total))


def test_micro_batch_does_not_depend_on_earlier_reads(dataset_folder: Path) -> None:
    config = build_tiny_config(Dataset.open(dataset_folder))
    one, other = (Batches(Dataset.open(dataset_folder), config) for _ in range(2))
    expected = [one.get_batch(3, micro_batch) for micro_batch in range(4)]
    for micro_batch in (2, 0, 3, 1, 2):
        assert all(map(torch.equal, other.get_batch(3, micro_batch), expected[micro_batch]))


def test_step_has_the_rows_of_the_ordinary_trainer(dataset_folder: Path) -> None:
    dataset = Dataset.open(dataset_folder)
    config = build_tiny_config(dataset)
    batches = Batches(dataset, config)
    loader = BlockLoader(dataset, "train", 4 * config.micro_batch, 16, config.seed)
    for step in range(5):
        inputs, targets = (
            torch.cat(half) for half in zip(*(batches.get_batch(step, m) for m in range(4)), strict=True)
        )
        assert all(map(torch.equal, (inputs, targets), loader.next_batch()))
        assert batches.count_targets(step) == targets.numel()
