"""Checkpoints: all it takes to go on with a run, or to score it again.

`checkpoints/step-00000100/` holds `model.safetensors`, `optimizer.pt` (plain tensors and numbers, never unpickled
freely), `state.json` (what is used of the budget, data position, random number generators, the run's identity) and,
written last, `manifest.json` with the size and sha256 of each. The folder is written aside and renamed: one with a
manifest is whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import load_model as load_weights
from safetensors.torch import save_file as save_weights
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.distributed.sharding import (
    gather_tensor,
    get_full_optimizer_state,
    is_sharded,
    load_full_optimizer_state,
    load_full_weights,
)
from trainer.errors import UserError
from trainer.models import load_architecture
from trainer.models.base import LanguageModel
from trainer.optim import lora
from trainer.protocol import Checkpoint, FileRef

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
FILES = ("model.safetensors", "optimizer.pt", "state.json")
NAME = re.compile(r"step-(\d{8,})")


class CheckpointError(UserError):
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


@dataclass(frozen=True)
class Snapshot:
    """Weights and momenta as they were at one moment, in main memory: training may go on while they are written."""

    weights: dict[str, Tensor]
    other_names: dict[str, str]
    """Names of tensors that have another name already, and that name: each tensor is kept once."""
    optimizers: list[dict[str, Any]]


def snapshot(model: nn.Module, optimizers: Sequence[Optimizer]) -> Snapshot:
    """Copy what a checkpoint needs. Of sharded tensors the whole is gathered: all processes must ask together."""
    first: dict[int, str] = {}
    weights, other_names = {}, {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in first:
            other_names[name] = first[id(tensor)]
            continue
        first[id(tensor)] = name
        weights[name] = copied(tensor)
    return Snapshot(weights, other_names, [copied(get_full_optimizer_state(optimizer)) for optimizer in optimizers])


def copied(content: Any) -> Any:
    """Return a copy in main memory of a tensor, or of all tensors in dicts and lists."""
    if isinstance(content, Tensor):
        return gather_tensor(content).detach().to("cpu", copy=True).contiguous()
    if isinstance(content, dict):
        return {name: copied(value) for name, value in content.items()}
    if isinstance(content, list):
        return [copied(value) for value in content]
    return content


def save(folder: Path, model: nn.Module, optimizers: Sequence[Optimizer], state: dict[str, Any]) -> Checkpoint:
    """Write a checkpoint of `state["step"]` to `folder`, replacing what is there; then all of it or nothing."""
    return write(folder, snapshot(model, optimizers), state)


def write(folder: Path, content: Snapshot, state: dict[str, Any]) -> Checkpoint:
    """Write a snapshot to `folder`. Raises OSError where the disk does not take it."""
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        save_weights(content.weights, aside / "model.safetensors", metadata={"format": "pt", **content.other_names})
        torch.save(content.optimizers, aside / "optimizer.pt")
    except (SafetensorError, RuntimeError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise as_os_error(error, folder) from error
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
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


def as_os_error(error: Exception, folder: Path) -> Exception:
    """Both libraries hide the disk's answer in a text of their own, or lose it."""
    number = re.search(r"os error (\d+)", str(error))
    if number:
        return OSError(int(number[1]), os.strerror(int(number[1])), str(folder))
    if "write failed" in str(error) or "PytorchStreamWriter" in str(error) or "unexpected pos" in str(error):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    return error


def prune(run_folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` whole checkpoints; the manifest goes first, so that none is left half."""
    for folder in complete(run_folder)[:-keep]:
        (folder / MANIFEST).unlink(missing_ok=True)  # a node's agent, too, takes away what it has sent
        shutil.rmtree(folder, ignore_errors=True)


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
    if any(is_sharded(tensor) for tensor in model.parameters()):
        fill_parts(folder, model)
    else:
        fill(folder, model)
    try:
        saved = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
        for optimizer, mine in zip(optimizers, saved, strict=True):
            load_full_optimizer_state(optimizer, mine)
    except (ValueError, KeyError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{folder / 'optimizer.pt'} does not fit this run's optimizers: start again in an empty folder"
        ) from error
    return state


def fill_parts(folder: Path, model: nn.Module) -> None:
    """Load a checkpoint's weights into a model that is cut over processes; each takes its part."""
    try:
        load_full_weights(model, load_file(folder / "model.safetensors"))
    except (RuntimeError, SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder / 'model.safetensors'} does not fit this run's architecture") from error


def fill(folder: Path, model: nn.Module) -> None:
    """Load a checkpoint's weights into a model of the same shape; into a plain one adapters come merged."""
    try:
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        merge = lora.layers_in(shapes) and not lora.is_adapted(model)
        if merge:
            lora.fit(model, shapes)
        load_weights(model, folder / "model.safetensors")
        if merge:
            lora.merge(model)
    except (RuntimeError, SafetensorError, OSError, lora.LoraError) as error:
        raise CheckpointError(f"{folder / 'model.safetensors'} does not fit this run's architecture") from error


def load_model(run_folder: Path, checkpoint: Path | None = None, device: str | torch.device = "cpu") -> LanguageModel:
    """Return a run's model as of a checkpoint (the latest), in evaluation mode. The run's architecture is imported."""
    folder = checkpoint or latest(run_folder)
    if folder is None:
        raise CheckpointError(f"{run_folder} has no whole checkpoint to load")
    verified(folder, ("model.safetensors", "state.json"))
    run = read_run(run_folder)
    module = load_architecture(run["arch"])
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
