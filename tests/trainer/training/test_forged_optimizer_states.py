"""Optimizer states that a node forged: that carry weights anywhere, or that kernels would read beyond their end."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.tiny import TINY
from tests.trainer.training.test_replay import INTERVALS, rewrite_manifest
from trainer.checkpoint.files import get_checkpoint_step, list_checkpoints
from trainer.checkpoint.store import load_model
from trainer.cli.score import main as score_command
from trainer.distributed.sharding import load_full_optimizer_state
from trainer.models import nanogpt
from trainer.optim.optimizers import assign_parameters
from trainer.protocol.files import OPTIMIZER_FILE, STATE_FILE
from trainer.scoring.compare_replay import compare_checkpoints, compare_weights
from trainer.training import replay

Train = Callable[..., int]
WEIGHTS = "model.safetensors"
ADAMW = ("--arch", "nanogpt")


def aim_momenta(folder: Path, directions: Mapping[str, torch.Tensor]) -> None:
    """Let momenta move each weight along a direction, whatever the gradients are."""
    optimizers = torch.load(folder / OPTIMIZER_FILE, weights_only=True)
    model = load_model(folder.parents[1], folder)
    names = [name for _, taken in assign_parameters(model, nanogpt.recipe(model.config)) for name in taken]
    for values, name in zip(optimizers[0]["state"].values(), names, strict=True):
        values["exp_avg"], values["exp_avg_sq"] = 1e6 * directions[name], torch.full_like(directions[name], 1e12)
    torch.save(optimizers, folder / OPTIMIZER_FILE)
    rewrite_manifest(folder)


def score_bits(run: Path, dataset: Path, capsys: pytest.CaptureFixture[str]) -> float:
    assert score_command([str(run), "--dataset", str(dataset), "--json"]) == 0
    return float(json.loads(capsys.readouterr().out)["bits_per_byte"])


def replay_steps(dataset: Path, out: Path, claimed: Path, budget: str, *steps: int, flags: tuple[str, ...] = ()) -> int:
    """Replay up to some steps, from the checkpoint in `out` if there is one; return the exit code."""
    state = json.loads((claimed / STATE_FILE).read_text())
    recorded = out.parent / "recorded.json"
    recorded.write_text(json.dumps({"clock": state["clock"], "train": state["identity"]["train"]}))
    words = ["--dataset", str(dataset), "--out", str(out), "--budget", budget, *TINY, *flags]
    return replay.main(["--until", *map(str, steps), "--recorded-state", str(recorded), *words])


@pytest.mark.slow
def test_momenta_that_carry_longer_trained_weights_are_found(
    train: Train, dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights of 400 steps in a run of 24: replays of single stretches that compared weights found each exact."""
    flags = ("--budget", "24steps", *INTERVALS)
    assert train(tmp_path / "run", *flags, *ADAMW) == 0
    assert train(tmp_path / "longer", "--budget", "400steps", *ADAMW) == 0
    first, second, _ = list_checkpoints(tmp_path / "run")
    target, start = (load_file(folder / WEIGHTS) for folder in (list_checkpoints(tmp_path / "longer")[-1], first))
    share = 1.0
    for attempt in ("trial", "forged"):
        start_folder = tmp_path / attempt / "checkpoints" / first.name
        shutil.copytree(first, start_folder)
        shutil.copy(tmp_path / "run" / "run.json", tmp_path / attempt)
        aim_momenta(start_folder, {name: (target[name] - start[name]) / share for name in start})
        assert train(tmp_path / attempt, *flags, *ADAMW) == 0
        end = load_file(tmp_path / attempt / "checkpoints" / second.name / WEIGHTS)
        moved = sum(float(((end[name] - start[name]) * (target[name] - start[name])).sum()) for name in start)
        share = moved / sum(float((target[name] - start[name]).square().sum()) for name in start)
    middle, *ends = list_checkpoints(tmp_path / "forged")
    capsys.readouterr()
    bits = [score_bits(tmp_path / name, dataset_folder, capsys) for name in ("run", "longer", "forged")]
    assert abs(bits[2] - bits[1]) < 0.2 * (bits[0] - bits[1])

    single = []
    for begin, end in itertools.pairwise([None, middle, *ends]):
        out = tmp_path / f"single-{end.name}"
        if begin:
            shutil.copytree(begin, out / "checkpoints" / begin.name)
        assert replay_steps(dataset_folder, out, end, "24steps", get_checkpoint_step(end), flags=ADAMW) == 0
        single.append(compare_weights(begin or end, end, list_checkpoints(out)[-1]).exact)
    assert single == [True, True, True]

    found = compare_checkpoints(middle, middle, tmp_path / f"single-{middle.name}" / "checkpoints" / middle.name)
    assert found.state_deviation > 0.5
    assert replay_steps(dataset_folder, tmp_path / "pair", ends[0], "24steps", 8, 16, flags=ADAMW) == 0
    pair = compare_checkpoints(middle, ends[0], list_checkpoints(tmp_path / "pair")[-1], start_is_replayed=True)
    assert pair.deviation > 0.3
    with capsys.disabled():
        names = ("24 steps", "400 steps", "forged")
        print(dict(zip(names, bits, strict=True)), "first stretch", found, "pair", pair)  # noqa: T201 (its figures)


@pytest.mark.parametrize(
    "change",
    [lambda value: value[:1], lambda value: value[:1].expand_as(value), torch.Tensor.char, torch.Tensor.bfloat16],
)
def test_state_of_another_shape_or_type_is_refused(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Torch's fused AdamW reads and writes beyond the end of a shorter state, and the process crashed."""
    layer = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    layer(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    content = copy.deepcopy(optimizer.state_dict())
    content["param_groups"][0]["lr"] = 9.0
    load_full_optimizer_state(optimizer, content)
    assert optimizer.param_groups[0]["lr"] == 0.1  # the recipe's
    content["state"][0]["exp_avg"] = change(content["state"][0]["exp_avg"])
    with pytest.raises(ValueError, match="exp_avg of parameter 0 has another shape or type"):
        load_full_optimizer_state(optimizer, content)
