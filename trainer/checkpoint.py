"""Checkpoints: all it takes to go on with a run, or to score it again.

`checkpoints/step-00000100/` holds `model.safetensors`, `optimizer.pt` (plain tensors and numbers, never unpickled
freely), `state.json` (what is used of the budget, data position, random number generators, the run's identity) and,
written last, `manifest.json` with the size and sha256 of each. The folder is written aside and renamed: one with a
manifest is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model as load_weights
from safetensors.torch import save_model as save_weights
from torch import nn
from torch.optim import Optimizer

from trainer.models import architecture
from trainer.models.base import LanguageModel
from trainer.wire import Checkpoint, FileRef

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
FILES = ("model.safetensors", "optimizer.pt", "state.json")
NAME = re.compile(r"step-(\d{8,})")


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message says which file and what to do."""


def path(run_folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step belongs."""
    return run_folder / FOLDER / f"step-{step:08d}"


def complete(run_folder: Path) -> list[Path]:
    """Return the run's whole checkpoints, oldest first."""
    folders = [folder for folder in (run_folder / FOLDER).glob("step-*") if NAME.fullmatch(folder.name)]
    return sorted((f for f in folders if (f / MANIFEST).is_file()), key=step_of)


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def latest(run_folder: Path) -> Path | None:
    """Return the newest whole checkpoint; its contents are verified when it is loaded."""
    return next(reversed(complete(run_folder)), None)


def save(folder: Path, model: nn.Module, optimizers: Sequence[Optimizer], state: dict[str, Any]) -> Checkpoint:
    """Write a checkpoint of `state["step"]` to `folder`, replacing what is there; then all of it or nothing."""
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_weights(model, str(aside / "model.safetensors"))
    torch.save([optimizer.state_dict() for optimizer in optimizers], aside / "optimizer.pt")
    (aside / "state.json").write_text(json.dumps(state))
    manifest = Checkpoint(step=state["step"], files=tuple(reference(aside / name) for name in FILES))
    for name in FILES:
        sync(aside / name)
    (aside / MANIFEST).write_text(manifest.model_dump_json(indent=1))
    sync(aside / MANIFEST)
    sync(aside)
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)
    sync(folder.parent)
    return manifest


def prune(run_folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` whole checkpoints; the manifest goes first, so that none is left half."""
    for folder in complete(run_folder)[:-keep]:
        (folder / MANIFEST).unlink()
        shutil.rmtree(folder)


def verified(folder: Path, names: Sequence[str] = FILES) -> dict[str, Any]:
    """Check files of a checkpoint against its manifest and return its state; raise `CheckpointError`.

    `names`: what is needed. To look at the weights nobody has to have the optimizer's half.
    """
    try:
        manifest = Checkpoint.model_validate_json((folder / MANIFEST).read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not a whole checkpoint: it has no {MANIFEST}") from error
    except ValueError as error:
        raise damaged(folder, MANIFEST) from error
    if {file.path for file in manifest.files} != set(FILES):
        raise damaged(folder, MANIFEST)
    for file in manifest.files:
        if file.path in names and (not (folder / file.path).is_file() or reference(folder / file.path) != file):
            raise damaged(folder, file.path)
    state = json.loads((folder / "state.json").read_bytes())
    if state["step"] != manifest.step:
        raise damaged(folder, "state.json")
    return state


def restore(folder: Path, model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """Put a verified checkpoint's weights and momenta back where `save` took them from and return its state."""
    state = verified(folder)
    fill(folder, model)
    try:
        saved = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
        for optimizer, mine in zip(optimizers, saved, strict=True):
            optimizer.load_state_dict(mine)
    except (ValueError, KeyError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{folder / 'optimizer.pt'} does not fit this run's optimizers: start again in an empty folder"
        ) from error
    return state


def fill(folder: Path, model: nn.Module) -> None:
    """Load a checkpoint's weights into a model of the same shape."""
    try:
        load_weights(model, folder / "model.safetensors")
    except (RuntimeError, SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder / 'model.safetensors'} does not fit this run's architecture") from error


def load_model(run_folder: Path, checkpoint: Path | None = None, device: str | torch.device = "cpu") -> LanguageModel:
    """Return a run's model as of a checkpoint (the latest), in evaluation mode. The run's architecture is imported."""
    folder = checkpoint or latest(run_folder)
    if folder is None:
        raise CheckpointError(f"{run_folder} has no whole checkpoint to load")
    verified(folder, ("model.safetensors", "state.json"))
    run = read_run(run_folder)
    module = architecture(run["arch"])
    model = module.Model(module.Config(**run["model"]))
    fill(folder, model)
    return model.to(device).eval()


def read_run(run_folder: Path) -> dict[str, Any]:
    """Return a run folder's `run.json`."""
    try:
        run = json.loads((run_folder / "run.json").read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{run_folder} is not a run: it has no run.json") from error
    except ValueError as error:
        raise CheckpointError(f"{run_folder / 'run.json'} is damaged: start again in an empty folder") from error
    assert isinstance(run, dict)
    return run


def damaged(folder: Path, name: str) -> CheckpointError:
    """Name the file and what to do about it."""
    before = [other for other in complete(folder.parent.parent) if step_of(other) < step_of(folder)]
    instead = f"go on from {before[-1].name}" if before else "start the run anew"
    return CheckpointError(f"{folder / name} is damaged (its manifest says otherwise): delete {folder} to {instead}")


def reference(file: Path) -> FileRef:
    """Describe a file by its content."""
    with file.open("rb") as stream:
        return FileRef(
            path=file.name, sha256=hashlib.file_digest(stream, "sha256").hexdigest(), size=file.stat().st_size
        )


def sync(file: Path) -> None:
    """Have the disk keep a file, or a folder's entries, before going on."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
