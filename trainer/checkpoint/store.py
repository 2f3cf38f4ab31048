"""Checkpoints: everything needed to resume or re-score a run.

`checkpoints/step-00000100/` holds the weights (`weight_files`), `optimizer.pt` (plain tensors and numbers, read with
the weights-only loader; not at the end of a run), `state.json` (used budget, data position, random number generators,
the run's identity) and, written last, `manifest.json` with the size and sha256 of each. The folder is written under
another name and renamed: a folder with a manifest is complete.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import math
import os
import pickle
import platform
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.checkpoint.files import (
    MANIFEST,
    NAME_PATTERN,
    get_checkpoint_step,
    list_checkpoints,
    load_weights,
    load_weights_into,
    open_weights,
    write_weights,
)
from trainer.distributed.devices import gather_tensor, get_full_optimizer_state, is_sharded
from trainer.errors import UserError
from trainer.models import load_architecture
from trainer.models.base import Architecture, ArchitectureConfig, LanguageModel
from trainer.ops import devices
from trainer.ops.attention import describe_kernels as describe_attention
from trainer.ops.devices import synchronize
from trainer.protocol.files import (
    CHECKPOINTS_FOLDER,
    OPTIMIZER_FILE,
    STATE_FILE,
    WEIGHTS_FILE,
    Checkpoint,
    FileRef,
    build_checkpoint_path,
    is_weights_file,
)

# --- pinned memory ----------------------------------------------------------------------------------------------------
# A GPU writes to pinned memory at the full rate of its bus and without the CPU. Pinning takes long, so it is done once.


SEGMENT_BYTES = 2**30  # a power of two, to which torch rounds pinned memory up
ALIGNMENT = 64


class HostBuffers:
    """Memory for one checkpoint at a time. `allocate`: returns that many bytes, uint8, on the CPU."""

    def __init__(self, allocate: Callable[[int], Tensor], segment_bytes: int = SEGMENT_BYTES) -> None:
        self.allocate = allocate
        self.segment_bytes = segment_bytes
        self.segments: list[Tensor] = []
        self.number = self.used = 0  # of the segment that is being filled, and its bytes in use

    def reuse(self) -> None:
        """Mark all memory as free; later copies overwrite earlier ones."""
        self.number = self.used = 0

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy, which a GPU may still be writing: synchronize before it is read."""
        count = tensor.numel() * tensor.element_size()
        if count == 0:
            return tensor.to("cpu", copy=True)
        # A storage of its own for each tensor: `torch.save` writes whole storages.
        memory = torch.from_numpy(self.take_segment(count).numpy()[self.used : self.used + count])
        self.used += math.ceil(count / ALIGNMENT) * ALIGNMENT
        return memory.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)

    def take_segment(self, count: int) -> Tensor:
        """Return the segment whose memory from `used` on has that many bytes; allocate one if none has."""
        while self.number < len(self.segments) and self.used + count > len(self.segments[self.number]):
            self.number, self.used = self.number + 1, 0
        if self.number == len(self.segments):
            self.segments.append(self.allocate(max(count, self.segment_bytes)))
        return self.segments[self.number]


MILESTONES_FOLDER = "milestones"


class CheckpointError(UserError):
    """A checkpoint cannot be used. The message names the file and what to do."""


def get_checkpoint_path(run_folder: Path, step: int) -> Path:
    """Return the folder for the checkpoint of a step."""
    return run_folder / build_checkpoint_path(step)


def find_latest_checkpoint(run_folder: Path) -> Path | None:
    """Return the newest complete checkpoint, or None. Its contents are verified when it is loaded."""
    return next(reversed(list_checkpoints(run_folder)), None)


@dataclass(frozen=True)
class CheckpointSnapshot:
    """A copy of weights and momenta in main memory, so that training can continue while it is written."""

    weights: dict[str, Tensor]
    aliases: dict[str, str]  # alias -> name under which the tensor is stored: each tensor is stored once
    optimizers: list[dict[str, Any]] | None  # None: weights only


def take_snapshot(
    model: nn.Module,
    optimizers: Sequence[Optimizer] | None,
    dtype: torch.dtype | None = None,
    buffers: HostBuffers | None = None,
) -> CheckpointSnapshot:
    """Copy what a checkpoint needs. Gathers sharded tensors, so all processes must call it together.

    `dtype`: of floating-point weights; None: as they are. `buffers`: memory for the copies, which overwrites the
    snapshot that was taken with them before; None: new memory.
    """
    if buffers is not None:
        buffers.reuse()
    first: dict[int, str] = {}
    weights, aliases = {}, {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
            continue
        first[id(tensor)] = name
        kept = tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
        weights[name] = copy_to_cpu(kept, buffers)
    states = None
    if optimizers is not None:
        states = [copy_to_cpu(get_full_optimizer_state(optimizer), buffers) for optimizer in optimizers]
    if buffers is not None:
        synchronize(next(model.parameters()).device)
    return CheckpointSnapshot(weights, aliases, states)


def copy_to_cpu(content: Any, buffers: HostBuffers | None) -> Any:
    """Copy a tensor, or all tensors in dicts and lists, to main memory. With buffers, synchronize before it is read."""
    if isinstance(content, Tensor):
        whole = gather_tensor(content).detach()
        return whole.to("cpu", copy=True).contiguous() if buffers is None else buffers.copy(whole)
    if isinstance(content, dict):
        return {name: copy_to_cpu(value, buffers) for name, value in content.items()}
    if isinstance(content, list):
        return [copy_to_cpu(value, buffers) for value in content]
    return content


def write_checkpoint(
    folder: Path, model: nn.Module, optimizers: Sequence[Optimizer] | None, state: dict[str, Any]
) -> Checkpoint:
    """Write a checkpoint of `state["step"]` to `folder` atomically, replacing an existing one."""
    return write_snapshot(folder, take_snapshot(model, optimizers), state)


def write_snapshot(
    folder: Path, content: CheckpointSnapshot, state: dict[str, Any], milestone: int | None = None
) -> Checkpoint:
    """Write a snapshot to `folder`. Raises OSError if the disk is full or fails."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        files = write_weights(partial, content.weights, content.aliases)
        if content.optimizers is not None:
            files.append(partial / OPTIMIZER_FILE)
            torch.save(content.optimizers, files[-1])
    except (SafetensorError, RuntimeError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise find_os_error(error, folder) from error
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    files.append(partial / STATE_FILE)
    files[-1].write_text(json.dumps(state))
    manifest = Checkpoint(step=state["step"], files=tuple(map(describe_file, files)), milestone=milestone)
    for file in files:
        fsync_path(file)
    (partial / MANIFEST).write_text(manifest.model_dump_json(indent=1, exclude_none=True))
    fsync_path(partial / MANIFEST)
    fsync_path(partial)
    replaced = hide_folder(folder)
    partial.rename(folder)
    fsync_path(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    return manifest


def hide_folder(folder: Path) -> Path:
    """Give a folder the name of one that may be deleted, if it exists. Deleting takes longer than renaming, and what is
    left when the process is killed meanwhile must not look complete."""
    hidden = folder.with_name(f".{folder.name}.deleted")
    shutil.rmtree(hidden, ignore_errors=True)
    with suppress(FileNotFoundError):  # the node also deletes uploaded checkpoints
        folder.rename(hidden)
    return hidden


def find_os_error(error: Exception, folder: Path) -> Exception:
    """Return the OSError behind a library's error: both libraries hide the error number in a message, or lose it."""
    number = re.search(r"os error (\d+)", str(error))
    if number:
        return OSError(int(number[1]), os.strerror(int(number[1])), str(folder))
    if "write failed" in str(error) or "PytorchStreamWriter" in str(error) or "unexpected pos" in str(error):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    return error


def prune_checkpoints(run_folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints, and what killed processes left. Not while one is being written."""
    for folder in list_checkpoints(run_folder)[:-keep]:
        shutil.rmtree(hide_folder(folder), ignore_errors=True)
    for kind in (CHECKPOINTS_FOLDER, MILESTONES_FOLDER):
        for folder in list_incomplete_folders(run_folder / kind):
            shutil.rmtree(folder, ignore_errors=True)


def list_incomplete_folders(parent: Path) -> list[Path]:
    """Return folders of interrupted writes and deletions. The node deletes without renaming."""
    deleted = (f for f in parent.glob("step-*") if NAME_PATTERN.fullmatch(f.name) and not (f / MANIFEST).exists())
    return [*parent.glob(".step-*"), *deleted]


def verify_checkpoint(folder: Path, *, weights: bool = True, optimizer: bool = True) -> dict[str, Any]:
    """Check files of a checkpoint against its manifest and return its state. Raises `CheckpointError`.

    `weights`, `optimizer`: whether those are needed. Scoring, for example, does not need the optimizer's.
    """
    try:
        manifest = Checkpoint.model_validate_json((folder / MANIFEST).read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not a complete checkpoint: it has no {MANIFEST}") from error
    except ValueError as error:
        raise build_damage_error(folder, MANIFEST) from error
    names = {file.path for file in manifest.files}
    parts = {name for name in names if is_weights_file(name)}
    if not parts or not parts | {STATE_FILE} <= names <= parts | {STATE_FILE, OPTIMIZER_FILE}:
        raise build_damage_error(folder, MANIFEST)
    needed = {STATE_FILE} | (parts if weights else set()) | ({OPTIMIZER_FILE} if optimizer else set())
    for file in manifest.files:
        if file.path in needed and (not (folder / file.path).is_file() or describe_file(folder / file.path) != file):
            raise build_damage_error(folder, file.path)
    state = json.loads((folder / STATE_FILE).read_bytes())
    if state["step"] != manifest.step:
        raise build_damage_error(folder, STATE_FILE)
    return state


def restore_checkpoint(folder: Path, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Load a verified checkpoint's weights and, unless the run had ended, momenta."""
    from trainer.distributed.sharding import load_full_optimizer_state

    load_checkpoint_weights(folder, model)
    if not (folder / OPTIMIZER_FILE).is_file():
        return
    try:
        saved = torch.load(folder / OPTIMIZER_FILE, map_location="cpu", weights_only=True)
        for optimizer, content in zip(optimizers, saved, strict=True):
            load_full_optimizer_state(optimizer, content)
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, pickle.UnpicklingError) as error:
        message = "does not fit this run's optimizers: start again in an empty folder"
        raise CheckpointError(f"{folder / OPTIMIZER_FILE} {message}") from error


def load_checkpoint_weights(folder: Path, model: nn.Module) -> None:
    """Load a checkpoint's weights into a model of the same shape; if it is sharded, each process takes its shards.

    Adapters are merged into a model without adapters.
    """
    try:
        if any(is_sharded(tensor) for tensor in model.parameters()):
            from trainer.distributed.sharding import load_full_weights

            load_full_weights(model, load_weights(folder))
            return
        with open_weights(folder) as files:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in files.items()}
        if any(name.endswith(".lora_down") for name in shapes):
            from trainer.optim.lora import load_adapted_weights

            load_adapted_weights(model, shapes, lambda: load_weights_into(model, folder))
        else:
            load_weights_into(model, folder)
    except (RuntimeError, SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder / WEIGHTS_FILE} does not fit this run's architecture") from error


def load_model(
    run_folder: Path,
    checkpoint: Path | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> LanguageModel:
    """Return a run's model from a checkpoint (default: the latest), in evaluation mode. Imports its architecture."""
    folder = checkpoint or find_latest_checkpoint(run_folder)
    if folder is None:
        raise CheckpointError(f"{run_folder} has no complete checkpoint to load")
    verify_checkpoint(folder, optimizer=False)
    run = read_run(run_folder)
    module = load_architecture(run["arch"])
    config = module.Config(**run["model"])
    model = module.Model(config) if dtype == torch.float32 else build_empty_model(module, config, dtype)
    load_checkpoint_weights(folder, model)
    return model.to(device).eval()


def build_empty_model(module: Architecture, config: ArchitectureConfig, dtype: torch.dtype) -> LanguageModel:
    """Return a model of another type for weights that are to be loaded, without its initial fp32 weights in memory."""
    with torch.device("meta"):
        model = module.Model(config)
    is_shared = len(list(model.named_parameters(remove_duplicate=False))) > len(list(model.parameters()))
    if is_shared or any(name not in model.state_dict() for name, _ in model.named_buffers()):
        return module.Model(config).to(dtype)  # values that no checkpoint holds
    return model.to(dtype).to_empty(device="cpu")


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


def build_damage_error(folder: Path, name: str) -> CheckpointError:
    """Return an error that names the damaged file and what to do."""
    step = get_checkpoint_step(folder)
    earlier = [other.name for other in list_checkpoints(folder.parent.parent) if get_checkpoint_step(other) < step]
    remedy = f"resume from {earlier[-1]}" if earlier else "start the run again"
    return CheckpointError(f"{folder / name} is damaged (it does not match its manifest): delete {folder} to {remedy}")


def describe_file(file: Path) -> FileRef:
    """Return a file's name, sha256 and size."""
    with file.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileRef(path=file.name, sha256=sha256, size=file.stat().st_size)


def fsync_path(file: Path) -> None:
    """Flush a file, or a folder's entries, to disk."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- writing in the background ----------------------------------------------------------------------------------------


class CheckpointWriter:
    """Runs one write at a time. Its error is raised by the next call, in the training thread.

    If the process is killed meanwhile, the previous checkpoint remains: the new one is renamed into place last.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[Any] | None = None

    def begin(self, write: Callable[[], Any]) -> None:
        """Start a write after the previous one has finished."""
        self.wait()
        self._writing = self._thread.submit(write)

    def check(self) -> None:
        """Raise the error of a finished write, if any."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait until everything is on disk."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """End the thread and ignore errors of its write, for a run that has already ended."""
        with suppress(Exception):
            self.wait()
        self._thread.shutdown()


# --- software and hardware --------------------------------------------------------------------------------------------


PACKAGES = ("torch", "lightning-fabric", "numpy", "tokenizers")


def describe_environment(device: torch.device) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": devices.get_gpu_name(device) if on_gpu else torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "attention": describe_attention(device),
        **{name: find_version(name) for name in PACKAGES},
    }


def find_version(package: str) -> str | None:
    """Return a package's version, None without metadata: `lightning` brings lightning-fabric without its own."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
