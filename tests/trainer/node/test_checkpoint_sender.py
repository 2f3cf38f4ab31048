"""When the sender of checkpoints sends the next one."""

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
from trainer.protocol import Checkpoint, FileRef


class RecordingSender(CheckpointSender):
    """Without a server."""

    def __init__(self, out: Path, upload_seconds: float) -> None:
        job = SimpleNamespace(client=None, stop_signal=None, lease=1, workspace=SimpleNamespace(out=out))
        super().__init__(cast(Job, job), -1, upload_seconds)
        self.steps: list[int] = []

    def _send(self, checkpoint: Checkpoint, files: Sequence[BufferedReader]) -> None:
        self.steps.append(checkpoint.step)


def write_checkpoint(out: Path, step: int, manifest_step: int) -> None:
    folder = out / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    file = FileRef(path="model.safetensors", sha256=hashlib.sha256(b"weights").hexdigest(), size=7)
    manifest = Checkpoint(step=manifest_step, files=(file,)).model_dump(mode="json")
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_checkpoint_that_could_not_be_sent_does_not_delay_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
