"""Checkpoints are written in the background, one at a time, and errors are raised later."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.waits import WAIT_SECONDS
from trainer.checkpoint.store import (
    CheckpointWriter,
    get_checkpoint_path,
    restore_checkpoint,
    take_snapshot,
    write_snapshot,
)


def test_begin_returns_before_write_ends() -> None:
    writer, go, done = CheckpointWriter(), threading.Event(), []
    writer.begin(lambda: go.wait(WAIT_SECONDS) and done.append(1))
    writer.check()
    assert done == []
    go.set()
    writer.wait()
    assert done == [1]


def test_second_write_waits_for_first() -> None:
    writer, written = CheckpointWriter(), []
    for number in range(5):
        writer.begin(lambda number=number: written.append(number))  # type: ignore[misc]
    writer.wait()
    assert written == [0, 1, 2, 3, 4]


def test_write_error_is_raised_once_at_next_call() -> None:
    writer = CheckpointWriter()

    def write() -> None:
        raise OSError(28, "No space left on device")

    writer.begin(write)
    with pytest.raises(OSError, match="No space"):
        writer.wait()
    writer.check()
    writer.wait()


def test_snapshot_is_not_changed_by_training(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    before = model.weight.detach().clone()
    taken = take_snapshot(model, [optimizer])
    optimizer.step()
    write_snapshot(get_checkpoint_path(tmp_path, 1), taken, {"step": 1})
    restore_checkpoint(get_checkpoint_path(tmp_path, 1), model, [optimizer])
    assert torch.equal(model.weight, before)
    assert optimizer.state_dict()["state"][0]["step"] == 1
