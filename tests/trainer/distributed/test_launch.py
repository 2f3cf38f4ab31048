"""One command starts a process per device, stops all of them and reports one reason."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from tests.support.tiny import TINY
from tests.support.waits import WAIT_SECONDS, wait_until
from trainer.checkpoint.store import find_latest_checkpoint
from trainer.distributed.launch import explain_failures

pytestmark = pytest.mark.processes


@contextmanager
def start_run(dataset: Path, out: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    words = ["--dataset", dataset, "--out", out, "--budget", "100000steps", "--checkpoint-every", "5steps"]
    command = [sys.executable, "-m", "trainer.train", *map(str, words), "--devices", "2", *TINY, *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield process
    finally:
        for each in (*psutil.Process(process.pid).children(), process) if process.poll() is None else ():
            each.kill()


def wait_for_checkpoint(process: subprocess.Popen[bytes], out: Path) -> None:
    wait_until(lambda: process.poll() is not None or find_latest_checkpoint(out))
    assert process.poll() is None


def find_worker(parent: int, rank: int) -> int:
    return next(c.pid for c in psutil.Process(parent).children() if c.environ().get("LOCAL_RANK") == str(rank))


@pytest.mark.slow
def test_killed_process_ends_run_with_one_line(dataset_folder: Path, tmp_path: Path) -> None:
    with start_run(dataset_folder, tmp_path, "--train.compile", "false") as process:
        wait_for_checkpoint(process, tmp_path)
        os.kill(find_worker(process.pid, 1), signal.SIGKILL)
        errors = process.communicate(timeout=WAIT_SECONDS)[1].decode()
    assert process.returncode == 1
    reason = "Process 2 of 2 was killed by signal 9. Run the same command again to resume from the last checkpoint."
    assert [line for line in errors.splitlines() if "dailytrain train:" in line] == [f"dailytrain train: {reason}"]
    assert "Traceback" not in errors
    assert "elastic" not in errors
    assert json.loads((tmp_path / "failure.json").read_text())["fault"] == "machine"


@pytest.mark.slow
def test_signal_to_launcher_saves_checkpoint_and_exits_130(dataset_folder: Path, tmp_path: Path) -> None:
    with start_run(dataset_folder, tmp_path, "--train.compile", "false") as process:
        wait_for_checkpoint(process, tmp_path)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=WAIT_SECONDS)[1].decode()
    assert process.returncode == 130
    assert "interrupted after saving step-" in errors
    assert not (tmp_path / "failure.json").exists()
    assert "dailytrain train:" not in errors


def build_failure(rank: int, exit_code: int, folder: Path, reason: str = "") -> ProcessFailure:
    file = folder / f"{rank}.json"
    if reason:
        file.write_text(json.dumps({"message": reason, "timestamp": 0}))
    return ProcessFailure(local_rank=rank, pid=1000 + rank, exitcode=exit_code, error_file=str(file))


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ([(1, ""), (3, "The loss is NaN.")], ("The loss is NaN.", 3)),
        ([(3, "The loss is NaN."), (2, "there is no such file")], ("there is no such file", 2)),
        ([(1, "The disk is full."), (-15, "")], ("The disk is full.", 1)),
        ([(130, ""), (130, "interrupted")], ("", 130)),
        ([(1, ""), (-9, "")], ("Process 2 of 2 was killed by signal 9", 1)),
        ([(-15, ""), (139, "")], ("Process 2 of 2 ended with exit code 139", 1)),
    ],
)
def test_explain_failures_names_the_cause(
    ended: list[tuple[int, str]], expected: tuple[str, int], tmp_path: Path
) -> None:
    failures = {rank: build_failure(rank, code, tmp_path, reason) for rank, (code, reason) in enumerate(ended)}
    reason, code = explain_failures(failures, len(ended))
    assert (reason.partition(". Run")[0], code) == expected
