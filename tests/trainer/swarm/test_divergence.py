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


GRADIENT, HIDDEN = "the gradient", "a hidden state"
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("arch", "workers", "what", "evaluation_interval", "changes"),
    [
        pytest.param("gpt", [0, 0], GRADIENT, 0, {"stages": 1, "weight_decay": 1e20}, id="loss"),
        pytest.param(
            "nanogpt", [0, 1, 0, 1], GRADIENT, 0, {"weight_decay": 1e9}, id="gradient", marks=pytest.mark.slow
        ),
        pytest.param("litgpt", [0, 1, 0, 1], HIDDEN, 0, {"weight_decay": 1e12}, id="hidden state"),
        pytest.param("litgpt", [0, 1], HIDDEN, 0, {"weight_decay": 1e12}, id="one worker a stage", marks=slow),
        pytest.param("gpt", [0, 1, 0, 1], HIDDEN, 0, {"weight_decay": 1e2, "wire": "fp16"}, id="beyond fp16"),
        pytest.param("litgpt", [0, 1, 0, 1], HIDDEN, 1, {"weight_decay": 1e12}, id="evaluation", marks=slow),
    ],
)
def test_swarm_whose_weights_explode_ends_with_diverged_error(
    dataset_folder: Path,
    tmp_path: Path,
    arch: str,
    workers: list[int],
    what: str,
    evaluation_interval: int,
    changes: dict[str, Any],
) -> None:
    dataset = Dataset.open(dataset_folder)
    batches = Batches(dataset, build_tiny_config(dataset, arch, learning_rate=0.9, warmup_steps=0, **changes))
    with pytest.raises(DivergedError, match=f"step .*: {what} is not finite"):
        train_in_process(batches, tmp_path, workers, evaluation_interval=evaluation_interval)
    kinds = read_kinds(tmp_path)
    assert "commit" in kinds
    assert not kinds & SANCTIONS


def read_kinds(folder: Path) -> set[str]:
    return {line["kind"] for line in read_journal(folder / "run")}


class RefusingWorker(Worker):
    """Claim that the model has diverged."""

    async def run_micro_batch(self, request: messages.RunRequest, frame: RpcFrame) -> RpcFrame:
        raise CallRefusedError(DIVERGED)


def train_with_refusals(dataset_folder: Path, folder: Path, refusing: Sequence[int]) -> None:
    """Train two workers of stage 0, two of stage 1 and one of stage 2; `refusing` are the numbers of those that lie."""
    dataset = Dataset.open(dataset_folder)
    batches = Batches(dataset, build_tiny_config(dataset, stages=3, steps=2))
    train_in_process(batches, folder, [0, 0, 1, 1, 2], dict.fromkeys(refusing, RefusingWorker))


def test_swarm_ends_only_when_all_of_a_stage_claim_divergence(dataset_folder: Path, tmp_path: Path) -> None:
    train_with_refusals(dataset_folder, tmp_path / "one of each", [0, 2])
    assert "end" in read_kinds(tmp_path / "one of each")
    with pytest.raises(DivergedError):
        train_with_refusals(dataset_folder, tmp_path / "all of one", [2, 3])
    assert not (read_kinds(tmp_path / "one of each") | read_kinds(tmp_path / "all of one")) & SANCTIONS
