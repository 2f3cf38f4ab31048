"""Replays of a stretch of a run: bit-identical if the claimed weights are honest, and far from them otherwise."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.tiny import TINY
from trainer.checkpoint.files import get_checkpoint_step, list_checkpoints
from trainer.checkpoint.store import get_checkpoint_path
from trainer.config.parsing import parse_config
from trainer.optim import muon
from trainer.scoring.compare_replay import (
    MAX_DEVIATION,
    CheckpointComparison,
    ReplayComparison,
    compare_checkpoints,
    compare_weights,
)
from trainer.scoring.compare_replay import main as compare_command
from trainer.training import loop
from trainer.training.replay import apply_recorded_fields, main


@pytest.fixture
def run_replay(dataset_folder: Path, tmp_path: Path) -> Callable[..., CheckpointComparison]:
    """Return a function that replays a run between two checkpoints (None: the first weights) and compares."""

    def replay(start: Path | None, claimed: Path, budget: str, *flags: str) -> CheckpointComparison:
        out = tmp_path / "again"
        if start:
            shutil.copytree(start, out / "checkpoints" / start.name)
        state = json.loads((claimed / "state.json").read_text())
        recorded = tmp_path / "recorded.json"
        recorded.write_text(json.dumps({"clock": state["clock"], "train": state["identity"]["train"]}))
        step = get_checkpoint_step(claimed)
        words = ["--dataset", str(dataset_folder), "--out", str(out), "--budget", budget, *TINY, *flags]
        assert main(["--until", str(step), "--recorded-state", str(recorded), *words]) == 0
        folders = (start or get_checkpoint_path(out, 0), claimed, get_checkpoint_path(out, step))
        return compare_checkpoints(*folders, start_is_replayed=start is None)

    return replay


def get_two_checkpoints(run: Path) -> tuple[Path, Path]:
    first, second, *_ = list_checkpoints(run)
    return first, second


@pytest.mark.slow
def test_replay_from_first_weights_is_bit_identical(
    train: Callable[..., int], run_replay: Callable[..., CheckpointComparison], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(run, "--budget", "20steps", "--checkpoint-every", "8steps", "--keep", "9")
    first, _ = get_two_checkpoints(run)
    assert run_replay(None, first, "20steps") == (True, 0.0, 0.0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


@pytest.mark.slow
def test_replay_of_budget_in_seconds_is_bit_identical(
    train: Callable[..., int],
    run_replay: Callable[..., CheckpointComparison],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The schedule depends on the seconds charged for each step, which the checkpoint has."""
    rng = random.Random(0)
    ticks = itertools.accumulate(rng.uniform(0.01, 0.05) for _ in itertools.count())
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(ticks), monotonic=time.monotonic))
    run = tmp_path / "run"
    train(run, "--budget", "1s", "--checkpoint-every", "8steps", "--keep", "9")
    first, second = get_two_checkpoints(run)
    assert len(json.loads((second / "state.json").read_text())["clock"]) == get_checkpoint_step(second)
    assert run_replay(first, second, "1s") == (True, 0.0, 0.0)


@pytest.mark.slow
def test_replay_uses_recorded_machine_fields(
    train: Callable[..., int],
    run_replay: Callable[..., CheckpointComparison],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Muon in bf16 computes other numbers than on a processor without bf16."""
    run = tmp_path / "run"
    monkeypatch.setattr(muon, "choose_precision", lambda device: "bf16")
    train(run, "--budget", "20steps", "--checkpoint-every", "8steps", "--keep", "9")
    monkeypatch.setattr(muon, "choose_precision", lambda device: "fp32")
    assert run_replay(*get_two_checkpoints(run), "20steps") == (True, 0.0, 0.0)


@pytest.mark.parametrize(
    "train",
    [
        {"micro_batch": 3},
        {"micro_batch": "abc"},
        {"micro_batch": 0},
        {"micro_batch": True},
        {"precision": "fp64", "muon_precision": ["bf16"], "compile": "yes"},
    ],
)
def test_recorded_fields_that_are_impossible_are_ignored(train: dict[str, Any], dataset_folder: Path) -> None:
    words = ["--dataset", str(dataset_folder), "--out", "run", "--budget", "20steps", *TINY]
    config = parse_config(words, "trainer.training.replay")
    assert apply_recorded_fields(config, {**train, "device": "cuda"}) == config
    changed = apply_recorded_fields(config, {**train, "muon_precision": "bf16"})
    assert changed.train == dataclasses.replace(config.train, muon_precision="bf16")


@pytest.mark.slow
def test_compare_replay_other_training_is_far(
    train: Callable[..., int], run_replay: Callable[..., CheckpointComparison], tmp_path: Path
) -> None:
    for name, seed in (("run", 1), ("other", 2)):
        train(tmp_path / name, "--budget", "20steps", "--checkpoint-every", "8steps", "--keep", "9", "--seed", seed)
    first, second = get_two_checkpoints(tmp_path / "run")
    shutil.copyfile(get_two_checkpoints(tmp_path / "other")[1] / "model.safetensors", second / "model.safetensors")
    found = run_replay(first, second, "20steps")
    assert not found.exact
    assert found.deviation > 0.3


def test_compare_replay_distance_is_relative_to_replayed_part(tmp_path: Path) -> None:
    ends = {"start": 0.0, "claimed": 2.0, "run_replay": 2.5}
    for name, value in ends.items():
        save_file({"a": torch.full((4,), value), "b": torch.zeros(2)}, tmp_path / name)
    start, claimed, replay = (tmp_path / name for name in ends)
    assert compare_weights(start, claimed, replay) == ReplayComparison(exact=False, deviation=0.25)


def test_compare_replay_false_first_weights_do_not_help(tmp_path: Path) -> None:
    for name, value in {"start": 1e6, "claimed": 2.0, "run_replay": 3.0}.items():
        save_file({"a": torch.full((4,), value)}, tmp_path / name)
    start, claimed, replay = (tmp_path / name for name in ("start", "claimed", "run_replay"))
    assert compare_weights(start, claimed, replay).deviation < 1e-5
    assert compare_weights(start, claimed, replay, start_is_replayed=True).deviation == 0.5


@pytest.mark.parametrize("amiss", [{"a": torch.zeros(3)}, {"b": torch.zeros(4)}, {"a": torch.full((4,), torch.nan)}])
def test_compare_replay_other_tensors_are_far(amiss: dict[str, torch.Tensor], tmp_path: Path) -> None:
    for name, tensors in {"start": {"a": torch.zeros(4)}, "claimed": {"a": torch.ones(4)}, "run_replay": amiss}.items():
        save_file(tensors, tmp_path / name)
    assert compare_weights(tmp_path / "start", tmp_path / "claimed", tmp_path / "run_replay").deviation == MAX_DEVIATION


def test_compare_replay_invalid_file_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text("not weights")
    assert compare_command([str(tmp_path / "a")] * 3) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--until", "0", "--budget", "5steps"), "the replay ends at step 0, but the checkpoint is of step 0"),
        (("--until", "5", "--budget", "5s"), "a budget in seconds needs the recorded time of 5 steps, and 0 are known"),
        (("--until", "5", "--budget", "soon"), "impossible budget 'soon'"),
    ],
)
def test_replay_bad_input_prints_one_line(
    flags: tuple[Any, ...], sentence: str, dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*flags, "--dataset", str(dataset_folder), "--out", str(tmp_path), *TINY]) == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("content", ["{", "[]"])
def test_replay_recorded_state_that_is_no_object_prints_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recorded.json"
    file.write_text(content)
    assert main(["--until", "5", "--recorded-state", str(file)]) == 2
    assert "recorded.json is not a JSON object" in capsys.readouterr().err
