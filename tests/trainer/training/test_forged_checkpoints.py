"""Checkpoints that a node has forged: what it charged, and the momenta that it trained with."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.tiny import TINY
from trainer.checkpoint.files import MANIFEST, get_checkpoint_step, list_checkpoints
from trainer.checkpoint.store import describe_file, load_model
from trainer.cli.score import main as score_command
from trainer.distributed.sharding import load_full_optimizer_state
from trainer.models import nanogpt
from trainer.optim.optimizers import assign_parameters
from trainer.protocol import Checkpoint
from trainer.protocol.files import OPTIMIZER_FILE, STATE_FILE
from trainer.scoring.compare_replay import MAX_DEVIATION, compare_checkpoints, compare_weights
from trainer.training import loop, replay

Train = Callable[..., int]
WEIGHTS = "model.safetensors"
ADAMW = ("--arch", "nanogpt")
INTERVALS = ("--checkpoint-every", "8steps", "--keep", "9")


def rewrite_manifest(folder: Path) -> None:
    """Describe the files as they are now, as a node does that has changed them."""
    manifest = Checkpoint.model_validate_json((folder / MANIFEST).read_bytes())
    files = tuple(describe_file(folder / file.path) for file in manifest.files)
    (folder / MANIFEST).write_text(manifest.model_copy(update={"files": files}).model_dump_json(exclude_none=True))


def change_state(folder: Path, changes: Mapping[str, Any]) -> None:
    state = json.loads((folder / STATE_FILE).read_text())
    for name, value in changes.items():
        state[name] = {**state[name], **value} if isinstance(value, Mapping) else value
    (folder / STATE_FILE).write_text(json.dumps(state))
    rewrite_manifest(folder)


def change_momenta(folder: Path, factor: float) -> None:
    optimizers = torch.load(folder / OPTIMIZER_FILE, weights_only=True)
    for values in (values for optimizer in optimizers for values in optimizer["state"].values()):
        for name in values.keys() & {"exp_avg", "momentum"}:
            values[name] *= factor
    torch.save(optimizers, folder / OPTIMIZER_FILE)
    rewrite_manifest(folder)


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
@pytest.mark.parametrize(
    ("budget", "changes"),
    [
        ("20steps", {}),
        ("20steps", {"spent": {"steps": 0, "tokens": 0, "flops": 0.0}}),
        ("20steps", {"spent": {"tokens": 0}}),
        ("1s", {}),
        ("1s", {"spent": {"seconds": 0.0}}),
        ("1s", {"spent": {"seconds": 0.0}, "clock": []}),
    ],
)
def test_checkpoint_that_charges_less_than_its_steps_cannot_be_resumed(
    budget: str,
    changes: dict[str, Any],
    train: Train,
    dataset_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node trained 315 steps and charged 90 with such checkpoints, and each replay of them was exact."""
    ticks = itertools.accumulate(itertools.repeat(0.03))
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(ticks), monotonic=time.monotonic))
    assert train(tmp_path / "run", "--budget", budget, *INTERVALS) == 0
    first, second, *_ = list_checkpoints(tmp_path / "run")
    start = tmp_path / "again" / "checkpoints" / first.name
    shutil.copytree(first, start)
    change_state(start, changes)
    assert replay_steps(dataset_folder, tmp_path / "again", second, budget, 16) == (2 if changes else 0)


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


@pytest.mark.slow
def test_replay_of_two_stretches_to_the_end_is_exact(train: Train, dataset_folder: Path, tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--budget", "20steps", *INTERVALS) == 0
    ends = list_checkpoints(tmp_path / "run")
    assert replay_steps(dataset_folder, tmp_path / "again", ends[-1], "20steps", 8, 16, 20) == 0
    start, *replayed = list_checkpoints(tmp_path / "again")
    for claimed, ours in zip(ends, replayed, strict=True):
        assert compare_checkpoints(start, claimed, ours, start_is_replayed=True) == (True, 0.0, 0.0)


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


@pytest.mark.parametrize(
    "forge",
    [
        lambda folder: (folder / STATE_FILE).unlink(),
        lambda folder: (folder / STATE_FILE).write_text("[" * 100_000),
        lambda folder: (folder / STATE_FILE).write_text('{"spikes": "none"}'),
        lambda folder: change_state(folder, {"spikes": {"norms": [10**400]}}),
        lambda folder: (folder / OPTIMIZER_FILE).unlink(),
        lambda folder: (folder / OPTIMIZER_FILE).write_bytes(b""),
        lambda folder: (folder / OPTIMIZER_FILE).write_bytes(b"no tensors"),
        lambda folder: change_momenta(folder, float("nan")),
        lambda folder: change_state(folder, {"spent": {"flops": 1.0}}),
        lambda folder: change_state(folder, {"loader": {"position": 0}}),
        lambda folder: change_state(folder, {"spikes": {"skipped": "9"}}),
        lambda folder: change_state(folder, {"spikes": {"skipped": 10**400}}),
    ],
)
def test_forged_part_of_a_checkpoint_is_far(forge: Callable[[Path], Any], tiny_run: Path, tmp_path: Path) -> None:
    honest, start = list_checkpoints(tiny_run)
    shutil.copytree(honest, tmp_path / "claimed")
    assert compare_checkpoints(start, tmp_path / "claimed", honest) == (True, 0.0, 0.0)
    forge(tmp_path / "claimed")
    found = compare_checkpoints(start, tmp_path / "claimed", honest)
    assert not found.exact
    assert found.state_deviation == MAX_DEVIATION


@pytest.mark.parametrize(("skipped", "deviation"), [(1, 0.05), (20, 1.0)])
def test_counter_of_a_checkpoint_counts_by_the_steps_of_the_run(
    skipped: int, deviation: float, tiny_run: Path, tmp_path: Path
) -> None:
    """Another machine's rounding may skip one gradient more."""
    honest, start = list_checkpoints(tiny_run)
    shutil.copytree(honest, tmp_path / "claimed")
    change_state(tmp_path / "claimed", {"spikes": {"skipped": skipped}})
    assert compare_checkpoints(start, tmp_path / "claimed", honest) == (False, 0.0, deviation)
