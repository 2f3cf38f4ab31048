"""Errors in the thread that reads batches end the run in one line, and the run resumes.

`test_resume.py` kills the whole process, `test_corrupt_shard.py` damages shards.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.metrics_lines import numbers
from trainer.checkpoint.files import get_checkpoint_step
from trainer.checkpoint.store import find_latest_checkpoint
from trainer.data import loader
from trainer.data import loader as loading
from trainer.data.loader import BlockLoader
from trainer.errors import RESUME_HINT

Train = Callable[..., int]
FLAGS = ("--budget", "30steps", "--checkpoint-every", "10steps")  # as `tiny_run`


def raise_memory_error() -> None:
    raise MemoryError


def raise_disk_error() -> None:
    raise OSError(5, "Input/output error")


WAYS: dict[str, tuple[Callable[[], None], str]] = {
    "no memory": (
        raise_memory_error,
        f"Out of memory: free some memory. {RESUME_HINT}",
    ),
    "the disk fails": (raise_disk_error, "cannot be read (Input/output error): delete the folder"),
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

    class FailingLoader(BlockLoader):
        def next_batch(self) -> loading.Batch:
            if self.position < 15 * self.batch:
                return super().next_batch()
            where.append(threading.current_thread().name)
            with pytest.MonkeyPatch.context() as broken:
                broken.setattr(os, "pread", lambda *_: happens())
                return super().next_batch()

    with monkeypatch.context() as broken:
        broken.setattr(loader, "load_packing", lambda _: FailingLoader)
        assert train(tmp_path, *FLAGS) == 1
    assert where[0].startswith("loader"), "the error was not in the thread"
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
    def raise_thread_error(self: threading.Thread) -> None:
        if self.name.startswith("loader"):
            raise RuntimeError("can't start new thread")
        start(self)

    start = threading.Thread.start
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", raise_thread_error)
        assert train(tmp_path, "--budget", "2steps") == 1
    errors = capsys.readouterr().err
    assert (
        "No thread could be started: raise the limit on processes. Run the same command again"
        in errors.splitlines()[-1]
    )
    assert "Traceback" not in errors
    assert train(tmp_path, "--budget", "2steps") == 0
