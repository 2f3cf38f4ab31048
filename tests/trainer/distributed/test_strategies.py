"""Two processes on a CPU train what one trains, translated or not, and go on as if nothing had happened."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.interrupted_runs import train
from tests.support.metrics_lines import numbers
from tests.support.paths import REPOSITORY
from tests.support.tiny import TINY
from tests.support.two_processes import IN_BF16, RUNS, WITH_OPTIONS, flags_of
from trainer.checkpoint import store

pytestmark = pytest.mark.timeout(900)  # three processes, two dozen runs


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.fixture(scope="module")
def runs(dataset_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the runs that `two_processes` made, and of the same one by a single process."""
    out = tmp_path_factory.mktemp("together")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "NODE_RANK": "0", "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.two_processes", str(dataset_folder), str(out)],
            cwd=REPOSITORY,
            env={**os.environ, **address, "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for single in ("single", "single, Muon in bf16"):
        assert train(out / single, *flags_of(single), "--dataset", dataset_folder) == 0
    for process in both:
        errors = process.communicate(timeout=600)[1].decode()
        assert process.returncode == 0, errors
        assert "Warning" not in errors
    return out


def weights(run: Path) -> dict[str, torch.Tensor]:
    folder = store.latest(run)
    assert folder is not None
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("run", RUNS)
def test_losses_are_those_of_one_process(runs: Path, run: str) -> None:
    pairs = list(zip(numbers(runs / run), numbers(runs / "single"), strict=True))
    assert len(pairs) == 6 + 2
    for ours, theirs in pairs:
        assert ours == {k: pytest.approx(v, rel=1e-4) if isinstance(v, float) else v for k, v in theirs.items()}


@pytest.mark.parametrize("run", RUNS)
def test_weights_are_those_of_one_process(runs: Path, run: str) -> None:
    ours, theirs = weights(runs / run), weights(runs / "single")
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        # Muon turns rounding errors of small gradients into a little more.
        assert torch.allclose(weight, theirs[name], atol=2e-3), name


@pytest.mark.parametrize("run", IN_BF16)
def test_with_muon_in_bf16_losses_are_those_of_one_process_but_for_its_rounding(runs: Path, run: str) -> None:
    pairs = list(zip(numbers(runs / run), numbers(runs / "single, Muon in bf16"), strict=True))
    assert len(pairs) == 6 + 2
    for ours, theirs in pairs:
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    assert numbers(runs / run) != numbers(runs / run.split(",")[0])  # it is another computation


@pytest.mark.parametrize("run", [*RUNS, *IN_BF16, *WITH_OPTIONS])
def test_a_stopped_run_goes_on_to_the_last_digit(runs: Path, run: str) -> None:
    assert numbers(runs / f"{run}-stopped") == numbers(runs / run)
    stopped, whole = weights(runs / f"{run}-stopped"), weights(runs / run)
    assert all(torch.equal(stopped[name], whole[name]) for name in whole)


def test_one_process_goes_on_with_what_two_began(runs: Path, dataset_folder: Path, tmp_path: Path) -> None:
    folder = next(f for f in store.complete(runs / "fsdp-stopped") if store.step_of(f) == 3)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / folder.name).symlink_to(folder)
    assert train(tmp_path, *flags_of("single"), "--keep", "5", "--dataset", dataset_folder) == 0
    last: list[dict[str, Any]] = numbers(tmp_path)
    assert last[-1]["loss"] == pytest.approx(numbers(runs / "single")[-1]["loss"], rel=1e-4)


def test_a_process_that_is_killed_ends_the_run_in_one_line(dataset_folder: Path, tmp_path: Path) -> None:
    flags = ["--dataset", dataset_folder, "--out", tmp_path, "--budget", "100000steps", "--checkpoint-every", "5steps"]
    flags += ["--devices", "2", *TINY]
    command = [sys.executable, "-m", "trainer.train", *map(str, flags)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        deadline = time.monotonic() + 200
        while store.latest(tmp_path) is None:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(second_of(process.pid), signal.SIGKILL)
        errors = process.communicate(timeout=60)[1].decode()
    finally:
        process.kill()
    assert process.returncode == 1
    told = [line for line in errors.splitlines() if line.startswith("dailytrain train:")]
    sentence = "Process 2 of 2 was killed by signal 9: the same command goes on from the last checkpoint."
    assert told == [f"dailytrain train: {sentence}"]
    assert "Traceback" not in errors
    assert sentence in (tmp_path / "failure.json").read_text()


def second_of(parent: int) -> int:
    """Return the process with the second place among those that a process started."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if b"LOCAL_RANK=1" in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError("no such process")
