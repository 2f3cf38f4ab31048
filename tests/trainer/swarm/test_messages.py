"""Hidden states and gradients in 16 bits: the loss on dev is the same within one percent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.swarm_chain import build_tiny_config
from tests.support.waits import WAIT_SECONDS
from trainer.data.dataset import Dataset
from trainer.swarm import checkpoint
from trainer.swarm.comparison import SingleProcessRun, has_equal_hashes, has_exact_cover
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.journal import get_losses
from trainer.swarm.local_swarm import LocalSwarm
from trainer.swarm.stage import Stage

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

STEPS = 24


def dev_loss(config: SwarmConfig, dataset: Dataset, stages: list[Stage]) -> float:
    nats, targets = 0.0, 0
    for x, y in Batches(dataset, config).iter_dev(64):
        hidden = None
        for stage in stages[:-1]:
            hidden = stage.forward(x, hidden, learn=False).output
        nats += float(stages[-1].compute_nats(x, hidden, y).double().sum())
        targets += int((y >= 0).sum())
    return nats / targets


def load_trained_stages(config: SwarmConfig, folder: Path) -> list[Stage]:
    """Return the stages as they are in the last checkpoint."""
    stages = [Stage(config, index) for index in range(config.stages)]
    for stage in stages:
        stage.load_state(checkpoint.load_stage(folder, config, stage.index, config.steps), config.steps)
    return stages


def train_single_process(config: SwarmConfig, dataset: Dataset) -> tuple[float, list[Stage]]:
    """Return the last loss of one process in fp32, and its weights as stages."""
    reference = SingleProcessRun(config, Batches(dataset, config))
    last = [reference.run_step() for _ in range(config.steps)][-1]
    stages = [Stage(config, index) for index in range(config.stages)]
    with torch.no_grad():
        for stage in stages:
            for name, parameter in stage.parameters.items():
                parameter.copy_(reference.parameters[name])
    return last, stages


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["bf16", "fp16", "fp8"])
def test_short_messages_keep_the_loss_within_one_percent(wire: str, dataset_folder: Path, tmp_path: Path) -> None:
    dataset = Dataset.open(dataset_folder)
    settings = {"steps": STEPS, "learning_rate": 3e-3, "checkpoint_every": STEPS, "audit": 0.2}
    config = build_tiny_config(dataset, wire=wire, sums="bf16", **settings)
    with LocalSwarm(config, dataset_folder, [0, 1, 0, 1], timeout=10, out=tmp_path / "run") as swarm:
        lines = swarm.run(WAIT_SECONDS)
    assert has_exact_cover(lines, config)
    assert has_equal_hashes(lines)
    assert not [line for line in lines if line["kind"] == "ban"]
    last, stages = train_single_process(config, dataset)
    assert get_losses(lines)[-1] == pytest.approx(last, rel=0.01)
    loss = dev_loss(config, dataset, load_trained_stages(config, tmp_path / "run"))
    assert loss == pytest.approx(dev_loss(config, dataset, stages), rel=0.01)
