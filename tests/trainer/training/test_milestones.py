"""Weights in bf16 at every so many percent of the budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tiny import TINY
from trainer.checkpoint.base_weights import find_base_checkpoint
from trainer.checkpoint.files import load_weights
from trainer.checkpoint.store import get_checkpoint_path, load_model, verify_checkpoint
from trainer.protocol import Checkpoint
from trainer.scoring.run_folder import RunFolder
from trainer.train import main
from trainer.training.loop import find_passed_milestone

Train = Callable[..., int]
FLAGS = ("--budget", "30steps", "--checkpoint-every", "10steps", "--milestones", "20")


@pytest.fixture(scope="module")
def run(dataset_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with milestones. For reading only."""
    out = tmp_path_factory.mktemp("milestones") / "run"
    assert main(["--dataset", str(dataset_folder), "--out", str(out), *TINY, *FLAGS]) == 0
    return out


def read_milestones(run: Path) -> dict[int, dict[str, torch.Tensor]]:
    """Return the weights by percent."""
    found = {}
    for folder in sorted((run / "milestones").iterdir()):
        manifest = Checkpoint.model_validate_json((folder / "manifest.json").read_bytes())
        assert manifest.step == 30 * manifest.milestone // 100
        assert {file.path for file in manifest.files} == {"model.safetensors", "state.json"}
        found[manifest.milestone] = load_weights(folder)
    return found


def test_run_keeps_bf16_weights_and_its_own_are_unchanged(run: Path, tiny_run: Path) -> None:
    kept = read_milestones(run)
    assert list(kept) == [20, 40, 60, 80]
    assert {tensor.dtype for tensor in kept[80].values()} == {torch.bfloat16}
    ours, whole = (load_weights(get_checkpoint_path(out, 30)) for out in (run, tiny_run))
    assert all(torch.equal(ours[name], tensor) for name, tensor in whole.items())


def test_milestone_is_loaded_scored_and_started_from(run: Path, train: Train, tmp_path: Path) -> None:
    folder = run / "milestones" / "step-00000018"
    assert verify_checkpoint(folder)["step"] == 18
    assert {tensor.dtype for tensor in load_model(run, folder).state_dict().values()} == {torch.float32}
    opened = RunFolder.open(run, folder)
    assert (opened.step, opened.checkpoint_floats) == (18, RunFolder.open(run).checkpoint_floats)
    assert find_base_checkpoint(folder).step == 18
    assert train(tmp_path / "next", "--from", folder, "--budget", "2steps") == 0
    assert json.loads((tmp_path / "next" / "run.json").read_text())["from"]["step"] == 18


@given(st.floats(0, 1.2), st.floats(0, 1.2), st.integers(1, 99))
def test_passed_milestone_lies_between_the_fractions(before: float, gain: float, every: int) -> None:
    after = min(before + gain, 1.5)
    mark = find_passed_milestone(before, after, every)
    if mark is None:
        return
    assert mark % every == 0
    assert mark < 100
    assert before * 100 - 1e-6 < mark <= after * 100 + 1e-6
