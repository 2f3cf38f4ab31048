"""The mean of the weights over the end of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.interrupted_runs import train
from trainer.checkpoint.folders import list_checkpoints
from trainer.checkpoint.store import find_latest_checkpoint, load_model
from trainer.checkpoint.weight_files import load_weights
from trainer.models.base import ParameterGroup, Recipe
from trainer.optim.optimizers import apply_schedule, build_optimizers, load_tail_average
from trainer.optim.tail_average import TailAverage

pytestmark = pytest.mark.processes


def test_tail_average_is_the_mean_of_the_last_steps() -> None:
    group = ParameterGroup("all", ("*",), "adamw", learning_rate=0.1)
    recipe = Recipe((group,), tail_average=0.5)
    model = nn.Linear(3, 2)
    optimizers = build_optimizers(model, recipe)
    assert isinstance(optimizers[-1], TailAverage)
    steps = []
    for number in range(8):
        apply_schedule(optimizers, recipe, number / 8, number)
        model(torch.ones(1, 3)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        steps.append(model.weight.detach().clone())
    load_tail_average(optimizers)
    torch.testing.assert_close(model.weight.detach(), torch.stack(steps[4:]).mean(0))


def test_recipe_without_tail_average_keeps_no_copy() -> None:
    group = ParameterGroup("all", ("*",), "adamw", learning_rate=0.1)
    assert not any(isinstance(each, TailAverage) for each in build_optimizers(nn.Linear(3, 2), Recipe((group,))))


def test_average_without_a_step_leaves_weights() -> None:
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    load_tail_average([TailAverage([list(model.parameters())])])
    assert torch.equal(model.weight, before)


@pytest.mark.slow
def test_final_checkpoint_and_result_are_of_averaged_weights(dataset_folder: Path, tmp_path: Path) -> None:
    flags = ("--budget", "6steps", "--checkpoint-every", "1steps", "--keep", "9", "--dataset", dataset_folder)
    evaluation = ("--train.evaluations", "1", "--train.sample-tokens", "0")
    assert train(tmp_path / "plain", *flags, *evaluation) == 0
    assert train(tmp_path / "tail", *flags, *evaluation, "--recipe.tail_average", "0.5") == 0
    # Training itself is the same: the last three steps' weights are in the plain run's checkpoints.
    parts = [load_weights(folder) for folder in list_checkpoints(tmp_path / "plain")[-3:]]
    final = find_latest_checkpoint(tmp_path / "tail")
    assert final is not None
    for name, found in load_weights(final).items():
        mean = torch.stack([part[name] for part in parts]).mean(0)
        torch.testing.assert_close(found, mean, rtol=1e-5, atol=1e-6)
    results = [json.loads((tmp_path / run / "result.json").read_text()) for run in ("plain", "tail")]
    assert results[0]["bits_per_byte"] != results[1]["bits_per_byte"]
    # The exported model is the averaged one.
    assert torch.equal(load_model(tmp_path / "tail").state_dict()["head.weight"], load_weights(final)["head.weight"])
