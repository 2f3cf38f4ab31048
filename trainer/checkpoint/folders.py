"""The folders of a run's checkpoints, by step. No torch and no code of architectures: the scorer imports it."""

from __future__ import annotations

import re
from pathlib import Path

from trainer.protocol.files import CHECKPOINTS_FOLDER

MANIFEST = "manifest.json"
NAME_PATTERN = re.compile(r"step-(\d{8,})")


def list_checkpoints(run_folder: Path) -> list[Path]:
    """Return the run's complete checkpoints, oldest first."""
    folders = (run_folder / CHECKPOINTS_FOLDER).glob("step-*")
    complete = (f for f in folders if NAME_PATTERN.fullmatch(f.name) and (f / MANIFEST).is_file())
    return sorted(complete, key=get_checkpoint_step)


def get_checkpoint_step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))
