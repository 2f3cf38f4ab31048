"""A model that diverges ends its run with an error, and no worker is banned for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_process_swarm import train_in_process
from tests.support.swarm_chain import build_tiny_config
from trainer.data.dataset import Dataset
from trainer.swarm import messages
from trainer.swarm.data import Batches
from trainer.swarm.frames import CallRefusedError, RpcFrame
from trainer.swarm.journal import read_journal
from trainer.swarm.stage_client import DIVERGED
from trainer.swarm.transaction import DivergedError
from trainer.swarm.worker import Worker

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

SANCTIONS = {"leave", "ban", "first_strike", "rollback"}


def train_until_diverged(
    dataset_folder: Path,
    folder: Path,
    arch: str,
    workers: Sequence[int],
    what: str = "the gradient",
    evaluation_interval: int = 0,
    **changes: Any,
) -> None:
    """Train with such a weight decay that the weights explode; check that this is the run's end."""
    dataset = Dataset.open(dataset_folder)
    config = build_tiny_config(dataset, arch, learning_rate=0.9, warmup_steps=0, **changes)
    batches = Batches(dataset, config)
    with pytest.raises(DivergedError, match=f"step .*: {what} is not finite"):
        train_in_process(batches, folder, workers, evaluation_interval=evaluation_interval)
    kinds = read_kinds(folder)
    assert "commit" in kinds
    assert not kinds & SANCTIONS


def read_kinds(folder: Path) -> set[str]:
    return {line["kind"] for line in read_journal(folder / "run")}


def test_swarm_with_nan_loss_ends_with_diverged_error(dataset_folder: Path, tmp_path: Path) -> None:
    train_until_diverged(dataset_folder, tmp_path, "gpt", [0, 0], stages=1, weight_decay=1e20)


def test_swarm_with_gradient_overflow_ends_with_diverged_error(dataset_folder: Path, tmp_path: Path) -> None:
    train_until_diverged(dataset_folder, tmp_path, "nanogpt", [0, 1, 0, 1], weight_decay=1e9)


@pytest.mark.parametrize("workers", [[0, 1, 0, 1], [0, 1]])
def test_swarm_with_nan_hidden_state_ends_with_diverged_error(
    dataset_folder: Path, tmp_path: Path, workers: list[int]
) -> None:
    train_until_diverged(dataset_folder, tmp_path, "litgpt", workers, "a hidden state", weight_decay=1e12)


def test_swarm_with_hidden_state_beyond_fp16_ends_with_diverged_error(dataset_folder: Path, tmp_path: Path) -> None:
    workers = [0, 1, 0, 1]
    train_until_diverged(dataset_folder, tmp_path, "gpt", workers, "a hidden state", weight_decay=1e2, wire="fp16")


def test_evaluation_with_nan_hidden_state_ends_with_diverged_error(dataset_folder: Path, tmp_path: Path) -> None:
    train_until_diverged(dataset_folder, tmp_path, "litgpt", [0, 1, 0, 1], "a hidden state", 1, weight_decay=1e12)


class RefusingWorker(Worker):
    """Claim that the model has diverged."""

    async def run_micro_batch(self, request: messages.RunRequest, frame: RpcFrame) -> RpcFrame:
        raise CallRefusedError(DIVERGED)


def train_with_refusals(dataset_folder: Path, folder: Path, refusing: Sequence[int]) -> None:
    """Train two workers of stage 0, two of stage 1 and one of stage 2; `refusing` are the numbers of those that lie."""
    dataset = Dataset.open(dataset_folder)
    batches = Batches(dataset, build_tiny_config(dataset, stages=3, steps=2))
    train_in_process(batches, folder, [0, 0, 1, 1, 2], dict.fromkeys(refusing, RefusingWorker))


def test_swarm_continues_when_one_of_each_stage_claims_divergence(dataset_folder: Path, tmp_path: Path) -> None:
    train_with_refusals(dataset_folder, tmp_path, [0, 2])
    kinds = read_kinds(tmp_path)
    assert "end" in kinds
    assert not kinds & SANCTIONS


def test_swarm_ends_when_all_of_a_later_stage_claim_divergence(dataset_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        train_with_refusals(dataset_folder, tmp_path, [2, 3])
    assert not read_kinds(tmp_path) & SANCTIONS
