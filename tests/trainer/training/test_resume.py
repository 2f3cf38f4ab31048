"""Runs that were stopped or killed resume exactly."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.metrics_lines import CLOCK, lines
from tests.support.tiny import TINY
from tests.support.waits import WAIT_SECONDS, wait_until
from trainer.checkpoint.files import get_checkpoint_step, list_checkpoints
from trainer.checkpoint.store import find_latest_checkpoint

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.usefixtures("forked_python")]

STEPS = 400


def start(dataset: Path, out: Path) -> subprocess.Popen[bytes]:
    flags = ["--dataset", dataset, "--out", out, "--budget", f"{STEPS}steps", "--checkpoint-every", "7steps", *TINY]
    return subprocess.Popen(
        [sys.executable, "-m", "trainer.train", *map(str, flags)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )


def wait_for_checkpoint(process: subprocess.Popen[bytes], out: Path, after: int = 0) -> int:
    """Wait for a checkpoint after a step, and return its step."""

    def get_step() -> int:
        folder = find_latest_checkpoint(out)
        return get_checkpoint_step(folder) if folder else 0

    wait_until(lambda: process.poll() is not None or get_step() > after)
    assert process.poll() is None, process.stderr and process.stderr.read().decode()
    return get_step()


def rows(out: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in CLOCK} for row in lines(out)]


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, errors.decode()


@pytest.fixture(scope="module")
def whole_run(dataset_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    finish(start(dataset_folder, out))
    return out


def test_killed_run_resumes_exactly(dataset_folder: Path, tmp_path: Path, whole_run: Path) -> None:
    step = 0
    for _ in range(2):
        process = start(dataset_folder, tmp_path)
        step = wait_for_checkpoint(process, tmp_path, after=step)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (tmp_path / "result.json").exists(), "the run ended before it was killed"
    finish(start(dataset_folder, tmp_path))
    assert rows(tmp_path) == rows(whole_run)
    last = [folder.name for folder in list_checkpoints(tmp_path)]
    assert last == [folder.name for folder in list_checkpoints(whole_run)]
    weights = [find_latest_checkpoint(out) / "model.safetensors" for out in (tmp_path, whole_run)]  # type: ignore[operator]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_stopped_run_saves_checkpoint(dataset_folder: Path, tmp_path: Path, whole_run: Path) -> None:
    process = start(dataset_folder, tmp_path)
    wait_for_checkpoint(process, tmp_path)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130, errors.decode()
    # Not every step has a line. The lines up to the checkpoint's step equal those of the whole run.
    last = get_checkpoint_step(find_latest_checkpoint(tmp_path))  # type: ignore[arg-type]
    assert rows(tmp_path)[-1]["step"] <= last
    assert rows(tmp_path) == [row for row in rows(whole_run) if row["step"] <= last]
