"""Batches are read in a thread, which cannot be killed alone: what fails in it ends the run in a line, and it goes on.

The whole process is killed in `test_resume.py`, shards are damaged in `test_corrupt_shard.py`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.metrics_lines import numbers
from trainer.checkpoint.store import find_latest_checkpoint, get_checkpoint_step
from trainer.data import loader as loading
from trainer.data import prefetch
from trainer.data.loader import BlockLoader
from trainer.errors import RESUME_HINT

Train = Callable[..., int]
FLAGS = ("--budget", "30steps", "--checkpoint-every", "10steps")  # as `tiny_run`


def no_memory() -> None:
    raise MemoryError


def disk_fails() -> None:
    raise OSError(5, "Input/output error")


WAYS: dict[str, tuple[Callable[[], None], str]] = {
    "no memory": (
        no_memory,
        f"Out of memory: free some memory. {RESUME_HINT}",
    ),
    "the disk fails": (disk_fails, "cannot be read (Input/output error): delete the folder"),
}


@pytest.mark.parametrize("way", WAYS)
def test_read_error_during_training_exits_in_one_line_and_resumes(
    way: str,
    train: Train,
    tiny_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    happens, sentence = WAYS[way]
    where: list[str] = []

    class Breaking(BlockLoader):
        def next_batch(self) -> loading.Batch:
            if self.position < 15 * self.batch:
                return super().next_batch()
            where.append(threading.current_thread().name)
            with pytest.MonkeyPatch.context() as broken:
                broken.setattr(os, "pread", lambda *_: happens())
                return super().next_batch()

    with monkeypatch.context() as broken:
        broken.setitem(prefetch.PACKINGS, "blocks", Breaking)
        assert train(tmp_path, *FLAGS) == 1
    assert where[0].startswith("loader"), "it was the thread that failed"
    errors = capsys.readouterr().err
    assert sentence in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert json.loads((tmp_path / "failure.json").read_text())["cause"] == "infrastructure"
    newest = find_latest_checkpoint(tmp_path)
    assert newest is not None
    assert get_checkpoint_step(newest) == 10
    assert train(tmp_path, *FLAGS) == 0
    assert numbers(tmp_path) == numbers(tiny_run)


def test_thread_limit_exits_in_one_line(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none_left(self: threading.Thread) -> None:
        if self.name.startswith("loader"):
            raise RuntimeError("can't start new thread")
        start(self)

    start = threading.Thread.start
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", none_left)
        assert train(tmp_path, "--budget", "2steps") == 1
    errors = capsys.readouterr().err
    assert (
        "No thread could be started: raise the limit on processes. Run the same command again"
        in errors.splitlines()[-1]
    )
    assert "Traceback" not in errors
    assert train(tmp_path, "--budget", "2steps") == 0
