"""A model that diverges ends its run with an error, and no worker is banned for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_process_swarm import train_in_process
from tests.support.swarm_chain import build_tiny_config
from tests.support.waits import WAIT_SECONDS
from trainer.data.dataset import Dataset
from trainer.swarm.data import Batches
from trainer.swarm.journal import read_journal
from trainer.swarm.transaction import DivergedError

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")


def train_until_diverged(dataset_folder: Path, folder: Path, arch: str, workers: Sequence[int], **changes: Any) -> None:
    """Train with such a weight decay that the weights explode; check that this is the run's end."""
    dataset = Dataset.open(dataset_folder)
    config = build_tiny_config(dataset, arch, learning_rate=0.9, warmup_steps=0, **changes)

    async def train() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await train_in_process(Batches(dataset, config), folder, workers, timeout=20)

    with pytest.raises(DivergedError, match="the gradient is not finite"):
        asyncio.run(train())
    kinds = {line["kind"] for line in read_journal(folder / "run")}
    assert "commit" in kinds
    assert not kinds & {"leave", "ban", "first_strike", "rollback"}


def test_swarm_with_nan_loss_ends_with_diverged_error(dataset_folder: Path, tmp_path: Path) -> None:
    train_until_diverged(dataset_folder, tmp_path, "gpt", [0, 0], stages=1, weight_decay=1e20)


def test_swarm_with_gradient_overflow_ends_with_diverged_error(dataset_folder: Path, tmp_path: Path) -> None:
    train_until_diverged(dataset_folder, tmp_path, "nanogpt", [0, 1, 0, 1], weight_decay=1e9)
