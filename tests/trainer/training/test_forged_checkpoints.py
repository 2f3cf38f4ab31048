"""Checkpoints that a node has forged: what it charged, and the momenta that it trained with."""

from __future__ import annotations

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

from tests.support.tiny import TINY
from trainer.checkpoint.files import MANIFEST, list_checkpoints
from trainer.checkpoint.store import describe_file
from trainer.protocol import Checkpoint
from trainer.protocol.files import OPTIMIZER_FILE, STATE_FILE
from trainer.scoring.compare_replay import MAX_DEVIATION, compare_checkpoints
from trainer.training import loop, replay

Train = Callable[..., int]
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


def replay_steps(dataset: Path, out: Path, claimed: Path, budget: str, *steps: int) -> int:
    """Replay up to some steps, from the checkpoint in `out` if there is one; return the exit code."""
    state = json.loads((claimed / STATE_FILE).read_text())
    recorded = out.parent / "recorded.json"
    recorded.write_text(json.dumps({"clock": state["clock"], "train": state["identity"]["train"]}))
    words = ["--dataset", str(dataset), "--out", str(out), "--budget", budget, *TINY]
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
def test_forged_momenta_are_found_at_both_checkpoints_of_a_pair(
    train: Train, dataset_folder: Path, tmp_path: Path
) -> None:
    """Weights that forged momenta carry away train honestly from there: replays of single stretches were exact."""
    flags = ("--budget", "20steps", *INTERVALS)
    assert train(tmp_path / "run", *flags) == 0
    middle = tmp_path / "forged" / "checkpoints" / list_checkpoints(tmp_path / "run")[0].name
    shutil.copytree(list_checkpoints(tmp_path / "run")[0], middle)
    change_momenta(middle, -50)
    shutil.copytree(middle, tmp_path / "single" / "checkpoints" / middle.name)
    assert train(tmp_path / "forged", *flags) == 0
    _, end, _ = list_checkpoints(tmp_path / "forged")

    assert replay_steps(dataset_folder, tmp_path / "single", end, "20steps", 16) == 0
    assert compare_checkpoints(middle, end, list_checkpoints(tmp_path / "single")[-1]) == (True, 0.0, 0.0)

    assert replay_steps(dataset_folder, tmp_path / "pair", end, "20steps", 8, 16) == 0
    start, replayed_middle, replayed_end = list_checkpoints(tmp_path / "pair")
    found = compare_checkpoints(start, middle, replayed_middle, start_is_replayed=True)
    assert found.deviation == 0
    assert found.state_deviation > 0.5
    found = compare_checkpoints(start, end, replayed_end, start_is_replayed=True)
    assert found.deviation > 0.3
    assert found.state_deviation > 0.3


@pytest.mark.slow
def test_replay_of_two_stretches_to_the_end_is_exact(train: Train, dataset_folder: Path, tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--budget", "20steps", *INTERVALS) == 0
    ends = list_checkpoints(tmp_path / "run")
    assert replay_steps(dataset_folder, tmp_path / "again", ends[-1], "20steps", 8, 16, 20) == 0
    start, *replayed = list_checkpoints(tmp_path / "again")
    for claimed, ours in zip(ends, replayed, strict=True):
        assert compare_checkpoints(start, claimed, ours, start_is_replayed=True) == (True, 0.0, 0.0)


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
