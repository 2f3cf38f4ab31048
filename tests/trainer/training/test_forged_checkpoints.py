"""Checkpoints that a node has forged: what it charged, and the momenta that it trained with."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.tiny import TINY
from trainer.checkpoint.folders import MANIFEST, list_checkpoints
from trainer.checkpoint.store import describe_file
from trainer.protocol import Checkpoint
from trainer.protocol.files import STATE_FILE
from trainer.training import loop, replay

Train = Callable[..., int]
INTERVALS = ("--checkpoint-every", "8steps", "--keep", "9")


def rewrite_manifest(folder: Path) -> None:
    """Describe the files as they are now, as a node does that has changed them."""
    manifest = Checkpoint.model_validate_json((folder / MANIFEST).read_bytes())
    files = tuple(describe_file(folder / file.path) for file in manifest.files)
    (folder / MANIFEST).write_text(manifest.model_copy(update={"files": files}).model_dump_json(exclude_none=True))


def change_state(folder: Path, changes: Mapping[str, Any]) -> None:
    state = json.loads((folder / STATE_FILE).read_text())
    for name, value in changes.items():
        state[name] = {**state[name], **value} if isinstance(value, Mapping) else value
    (folder / STATE_FILE).write_text(json.dumps(state))
    rewrite_manifest(folder)


def replay_steps(dataset: Path, out: Path, claimed: Path, steps: int, budget: str) -> int:
    """Replay up to a step, from the checkpoint in `out` if there is one; return the exit code."""
    state = json.loads((claimed / STATE_FILE).read_text())
    recorded = out.parent / "recorded.json"
    recorded.write_text(json.dumps({"clock": state["clock"], "train": state["identity"]["train"]}))
    words = ["--dataset", str(dataset), "--out", str(out), "--budget", budget, *TINY]
    return replay.main(["--until", str(steps), "--recorded-state", str(recorded), *words])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "changes"),
    [
        ("20steps", {}),
        ("20steps", {"spent": {"steps": 0, "tokens": 0, "flops": 0.0}}),
        ("20steps", {"spent": {"tokens": 0}}),
        ("1s", {}),
        ("1s", {"spent": {"seconds": 0.0}}),
        ("1s", {"spent": {"seconds": 0.0}, "clock": []}),
    ],
)
def test_checkpoint_that_charges_less_than_its_steps_cannot_be_resumed(
    budget: str,
    changes: dict[str, Any],
    train: Train,
    dataset_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node trained 315 steps and charged 90 with such checkpoints, and each replay of them was exact."""
    ticks = itertools.accumulate(itertools.repeat(0.03))
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(ticks), monotonic=time.monotonic))
    assert train(tmp_path / "run", "--budget", budget, *INTERVALS) == 0
    first, second, *_ = list_checkpoints(tmp_path / "run")
    start = tmp_path / "again" / "checkpoints" / first.name
    shutil.copytree(first, start)
    change_state(start, changes)
    assert replay_steps(dataset_folder, tmp_path / "again", second, 16, budget) == (2 if changes else 0)
