"""Two processes on a CPU get the results of one, compiled or not, and resume exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.interrupted_runs import train
from tests.support.metrics_lines import numbers
from tests.support.paths import REPOSITORY
from tests.support.tiny import TINY_RWKV5
from tests.support.waits import WAIT_SECONDS
from tests.trainer.distributed.two_processes import CHUNKED, IN_BF16, RUNS, WITH_OPTIONS, get_flags
from trainer.checkpoint.files import get_checkpoint_step, list_checkpoints, load_weights
from trainer.checkpoint.store import find_latest_checkpoint
from trainer.distributed.ports import find_free_port

pytestmark = [pytest.mark.processes, pytest.mark.slow]  # three processes, two dozen runs


@pytest.fixture(scope="module")
def runs(dataset_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the runs that `two_processes` made, and of the same one by a single process."""
    out = tmp_path_factory.mktemp("together")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port()), "NODE_RANK": "0"}
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.trainer.distributed.two_processes", str(dataset_folder), str(out)],
            cwd=REPOSITORY,
            env={**os.environ, **address, "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for single in ("single", "single, Muon in bf16"):
        assert train(out / single, *get_flags(single), "--dataset", dataset_folder) == 0
    for process in both:
        errors = process.communicate(timeout=WAIT_SECONDS)[1].decode()
        assert process.returncode == 0, errors
        assert "Warning" not in errors
    return out


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_weights(find_latest_checkpoint(run))  # type: ignore[arg-type]


def assert_equal_numbers(ours: Path, theirs: Path, tolerance: float) -> None:
    pairs = list(zip(numbers(ours), numbers(theirs), strict=True))
    assert len(pairs) == 6 + 2
    for mine, other in pairs:
        assert mine == {k: pytest.approx(v, rel=tolerance) if isinstance(v, float) else v for k, v in other.items()}


@pytest.mark.parametrize("run", RUNS)
def test_losses_of_two_processes_equal_one(runs: Path, run: str) -> None:
    assert_equal_numbers(runs / run, runs / "single", 1e-4)
    ours, theirs = weights(runs / run), weights(runs / "single")
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        difference = (weight - theirs[name]).abs()
        assert difference.quantile(0.99) < 1e-4, name
        assert difference.max() < 1e-2, name  # the optimizers amplify rounding errors of the smallest gradients


@pytest.mark.parametrize("run", CHUNKED)
def test_losses_of_sharded_chunks_equal_one_process(runs: Path, run: str, dataset_folder: Path, tmp_path: Path) -> None:
    flags = (*get_flags("single"), "--train.chunk-gradients", run.split()[-1], "--dataset", dataset_folder)
    assert train(tmp_path, *flags, tiny=TINY_RWKV5) == 0
    assert_equal_numbers(runs / run, tmp_path, 1e-5)


@pytest.mark.parametrize("run", IN_BF16)
def test_losses_with_bf16_muon_are_close_to_one_process(runs: Path, run: str) -> None:
    pairs = list(zip(numbers(runs / run), numbers(runs / "single, Muon in bf16"), strict=True))
    assert len(pairs) == 6 + 2
    for ours, theirs in pairs:
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    assert numbers(runs / run) != numbers(runs / run.split(",")[0])  # another precision


@pytest.mark.parametrize("run", [*RUNS, *IN_BF16, *WITH_OPTIONS, *CHUNKED])
def test_stopped_run_resumes_exactly(runs: Path, run: str) -> None:
    assert numbers(runs / f"{run}-stopped") == numbers(runs / run)
    stopped, whole = weights(runs / f"{run}-stopped"), weights(runs / run)
    assert all(torch.equal(stopped[name], whole[name]) for name in whole)


def test_sharded_run_with_wrong_compiled_gradients_ends_as_the_machines_fault(runs: Path) -> None:
    reason = json.loads((runs / "wrong/failure.json").read_text())["reason"]
    assert "torch.compile computes wrong gradients" in reason


def test_checkpoint_of_two_processes_resumes_with_one(runs: Path, dataset_folder: Path, tmp_path: Path) -> None:
    folder = next(f for f in list_checkpoints(runs / "fsdp-stopped") if get_checkpoint_step(f) == 3)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / folder.name).symlink_to(folder)
    assert train(tmp_path, *get_flags("single"), "--keep", "5", "--dataset", dataset_folder) == 0
    assert numbers(tmp_path)[-1]["loss"] == pytest.approx(numbers(runs / "single")[-1]["loss"], rel=1e-4)
