"""Which checkpoint the sender sends next, and when."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from trainer.node import checkpoint_sender
from trainer.node.checkpoint_sender import CheckpointSender
from trainer.node.job import Job
from trainer.node.stop_signal import SponsorSignal, StopSignal
from trainer.protocol import Checkpoint, FileRef


class RecordingSender(CheckpointSender):
    """Without a server."""

    def __init__(self, out: Path, upload_seconds: float) -> None:
        signal = StopSignal(SponsorSignal())
        job = SimpleNamespace(client=None, stop_signal=signal, lease=1, workspace=SimpleNamespace(out=out))
        super().__init__(cast(Job, job), -1, upload_seconds)
        self.steps: list[int] = []
        self.milestones: list[int | None] = []

    def _send(self, checkpoint: Checkpoint, files: Sequence[BufferedReader]) -> None:
        self.steps.append(checkpoint.step)
        self.milestones.append(checkpoint.milestone)


def write_checkpoint(out: Path, step: int, manifest_step: int, milestone: int | None = None) -> None:
    folder = out / ("milestones" if milestone else "checkpoints") / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    file = FileRef(path="model.safetensors", sha256=hashlib.sha256(b"weights").hexdigest(), size=7)
    manifest = Checkpoint(step=manifest_step, files=(file,), milestone=milestone).model_dump(mode="json")
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_damaged_checkpoint_does_not_delay_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]
    monkeypatch.setattr(checkpoint_sender, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    sender = RecordingSender(tmp_path, upload_seconds=100)
    write_checkpoint(tmp_path, 10, manifest_step=11)
    seconds[0] = 100
    sender.send_next()
    assert sender.steps == []
    write_checkpoint(tmp_path, 20, manifest_step=20)
    seconds[0] = 110
    sender.send_next()
    write_checkpoint(tmp_path, 30, manifest_step=30)
    sender.send_next()
    assert sender.steps == [20], "the third one is not due yet"


def test_milestone_is_sent_at_once_and_removed(tmp_path: Path) -> None:
    sender = RecordingSender(tmp_path, upload_seconds=1e9)
    write_checkpoint(tmp_path, 10, manifest_step=10)
    write_checkpoint(tmp_path, 12, manifest_step=12, milestone=10)
    write_checkpoint(tmp_path, 24, manifest_step=99, milestone=20)  # damaged: left out
    while sender.send_next():
        pass
    assert (sender.steps, sender.milestones) == ([12], [10])
    assert list((tmp_path / "milestones").iterdir()) == []
    sender._closing.set()
    assert sender.send_next()
    assert (sender.steps, sender.milestones) == ([12, 10], [10, None])


def test_milestone_waits_for_the_last_checkpoint_once_the_sponsor_stops(tmp_path: Path) -> None:
    sender = RecordingSender(tmp_path, upload_seconds=1e9)
    write_checkpoint(tmp_path, 12, manifest_step=12, milestone=10)
    sender.stop_signal.sponsor.request_stop()
    assert not sender.send_next(), "the process still writes its last checkpoint"
    write_checkpoint(tmp_path, 15, manifest_step=15)
    sender._closing.set()
    while sender.send_next():
        pass
    assert (sender.steps, sender.milestones) == ([15, 12], [None, 10])
