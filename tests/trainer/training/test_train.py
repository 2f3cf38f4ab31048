"""A complete training run: its folder, its metrics, its milestones, and what does not change its numbers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.metrics_lines import lines, numbers
from tests.support.tiny import TINY
from trainer.checkpoint.base_weights import find_base_checkpoint
from trainer.checkpoint.files import list_checkpoints, load_weights
from trainer.checkpoint.store import find_latest_checkpoint, get_checkpoint_path, load_model, verify_checkpoint
from trainer.data.dataset import Dataset
from trainer.models.gpt import Config, recipe
from trainer.protocol import Checkpoint
from trainer.scoring.run_folder import RunFolder
from trainer.train import main
from trainer.training import loop
from trainer.training.loop import find_passed_milestone

Train = Callable[..., int]


def test_run_json_describes_run(tiny_run: Path, dataset_folder: Path) -> None:
    run = json.loads((tiny_run / "run.json").read_text())
    dataset = Dataset.open(dataset_folder)
    assert (run["format"], run["arch"], run["seed"], run["budget"]) == (1, "gpt", 1, "30steps")
    assert run["dataset"]["hash"] == dataset.hash
    assert run["dataset"]["tokenizer_sha256"] == dataset.tokenizer.sha256
    assert run["model"]["depth"] == 2
    assert run["parameters"] == {"total": 55_402, "embedding": 2 * 320 * 32, "non_embedding": 34_922}
    names = ["embedding", "value embeddings", "head", "smear", "scalars", "matrices"]
    assert [group["name"] for group in run["recipe"]["groups"]] == names
    assert run["config"]["resolved"]["batch"] == 4
    assert (tiny_run / "tokenizer.json").read_bytes() == (dataset_folder / "tokenizer.json").read_bytes()


def test_training_reduces_dev_loss(tiny_run: Path) -> None:
    dev = lines(tiny_run, "dev")
    assert dev[0]["step"] == 0
    assert dev[0]["loss"] == pytest.approx(math.log(320), rel=0.01)
    assert dev[-1]["bits_per_byte"] < 0.75 * dev[0]["bits_per_byte"]


def test_metrics_lines_have_all_fields(tiny_run: Path) -> None:
    train, dev, samples = (lines(tiny_run, kind) for kind in ("train", "dev", "sample"))
    assert [row["step"] for row in train] == list(range(1, 31))
    assert [row["step"] for row in dev] == [0, 6, 12, 18, 24, 30]
    assert len(samples) == 6 * 3
    assert set(train[0]) == {
        *("kind", "step", "fraction", "tokens", "flops", "seconds", "loss", "learning_rate"),
        *("gradient_norm", "tokens_per_second", "mfu", "mfu_windowed", "memory_bytes", "spikes"),
    }
    assert set(dev[0]) == {"kind", "step", "fraction", "tokens", "flops", "seconds", "loss", "bits_per_byte"}
    assert set(samples[0]) == {"kind", "step", "prompt", "text"}
    assert train[-1]["fraction"] == dev[-1]["fraction"] == 1
    assert train[-1]["tokens"] == 30 * 4 * 32
    assert train[-1]["mfu_windowed"] == train[-1]["mfu"], "a module counts products only; no block has a window"
    rates = [row["learning_rate"] for row in train]
    schedule = recipe(Config(vocabulary_size=320, sequence_length=32)).schedule
    assert rates[-1] / max(rates) == pytest.approx(schedule.scale(29 / 30), rel=1e-3)


def test_finished_run_has_checkpoint_and_result(tiny_run: Path) -> None:
    result = json.loads((tiny_run / "result.json").read_text())
    assert (result["steps"], result["tokens"]) == (30, 30 * 4 * 32)
    assert result["final_loss"] == lines(tiny_run, "dev")[-1]["loss"]
    assert tiny_run / result["checkpoint"] == find_latest_checkpoint(tiny_run)
    assert [folder.name for folder in list_checkpoints(tiny_run)] == ["step-00000020", "step-00000030"]
    assert not (tiny_run / "failure.json").exists()


def test_equal_runs_have_equal_metrics(train: Train, tiny_run: Path, tmp_path: Path) -> None:
    assert train(tmp_path, "--budget", "30steps", "--checkpoint-every", "1000steps", "--keep", "1") == 0
    assert numbers(tmp_path) == numbers(tiny_run)


def test_micro_batches_equal_whole_batch(train: Train, tiny_run: Path, tmp_path: Path) -> None:
    assert train(tmp_path, "--budget", "1steps", "--train.micro-batch", "1") == 0
    ours, theirs = (lines(out, "train")[0] for out in (tmp_path, tiny_run))
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert ours["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "steps"), [("1000tokens", 8), ("1e8flops", 4)])
def test_budget_in_tokens_or_flops_ends_exactly_and_a_finished_run_is_not_changed(
    train: Train, tmp_path: Path, budget: str, steps: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, "--budget", budget) == 0
    assert json.loads((tmp_path / "result.json").read_text())["steps"] == steps
    before = (tmp_path / "metrics.jsonl").read_text()
    assert train(tmp_path, "--budget", budget) == 0
    assert (tmp_path / "metrics.jsonl").read_text() == before
    assert capfd.readouterr().out == ""


def test_budget_in_seconds_charges_training_only(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which a step takes 20 ms and an evaluation 100 s."""
    seconds, evaluate, run_step = 0.0, loop.evaluate, loop.run_step

    def evaluate_slowly(*arguments: Any) -> None:
        nonlocal seconds
        seconds += 100
        evaluate(*arguments)

    def step_slowly(*arguments: Any) -> tuple[float, float]:
        nonlocal seconds
        seconds += 0.02
        return run_step(*arguments)

    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: seconds, monotonic=time.monotonic))
    monkeypatch.setattr(loop, "TRAIN_LINES", 10)
    monkeypatch.setattr(loop, "evaluate", evaluate_slowly)
    monkeypatch.setattr(loop, "run_step", step_slowly)
    assert train(tmp_path, "--budget", "1s") == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["train_seconds"] == pytest.approx(1, abs=0.021)
    assert [row["fraction"] for row in lines(tmp_path, "dev")][-1] == 1
    assert 10 <= len(lines(tmp_path, "train")) <= 11


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--seed", "5"], "seed"),
        (["--budget", "31steps"], "budget"),
        (["--model.depth", "1"], "model and train"),
        (["--recipe.clip", "0.01"], "recipe"),
    ],
)
def test_folder_of_other_run_is_rejected(
    train: Train, tiny_run: Path, flags: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (tiny_run / "run.json").read_bytes()
    assert train(tiny_run, "--budget", "30steps", *flags) == 2
    assert f"holds a run with another {what}" in capsys.readouterr().err
    assert (tiny_run / "run.json").read_bytes() == before


# --- milestones: weights in bf16 at every so many percent of the budget -----------------------------------------------


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
