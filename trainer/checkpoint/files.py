"""Weights as safetensors: `model.safetensors`, or shards of at most `SHARD_BYTES` with the Hub's standard index."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from trainer.protocol.files import CHECKPOINTS_FOLDER, SHARD_NAME, WEIGHTS_FILE, WEIGHTS_INDEX

if TYPE_CHECKING:
    from torch import Tensor, nn


# --- folders of checkpoints -------------------------------------------------------------------------------------------
# The folders of a run's checkpoints, by step. No torch and no code of architectures: the scorer imports it.


MANIFEST = "manifest.json"
NAME_PATTERN = re.compile(r"step-(\d{8,})")


def list_checkpoints(run_folder: Path) -> list[Path]:
    """Return the run's complete checkpoints, oldest first."""
    folders = (run_folder / CHECKPOINTS_FOLDER).glob("step-*")
    complete = (f for f in folders if NAME_PATTERN.fullmatch(f.name) and (f / MANIFEST).is_file())
    return sorted(complete, key=get_checkpoint_step)


def get_checkpoint_step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


SHARD_BYTES = 4 * 10**9


def write_weights(folder: Path, weights: dict[str, Tensor], aliases: Mapping[str, str]) -> list[Path]:
    """Write weights and return the files. `aliases`: other names of tensors, for the metadata."""
    from huggingface_hub import split_torch_state_dict_into_shards  # takes 0.2 s; scorers only read
    from safetensors.torch import save_file

    split = split_torch_state_dict_into_shards(weights, max_shard_size=SHARD_BYTES)
    for name, tensors in split.filename_to_tensors.items():
        own = {alias: tensor for alias, tensor in aliases.items() if tensor in tensors}
        save_file({tensor: weights[tensor] for tensor in tensors}, folder / name, metadata={"format": "pt", **own})
    names = [*split.filename_to_tensors]
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / WEIGHTS_INDEX).write_text(json.dumps(index, indent=1))
        names.append(WEIGHTS_INDEX)
    return [folder / name for name in names]


def list_weight_files(path: Path) -> list[Path]:
    """Return the safetensors files in a folder, or the file itself. Raise FileNotFoundError if a shard is missing."""
    if path.is_file():
        return [path]
    if (path / WEIGHTS_FILE).is_file():
        return [path / WEIGHTS_FILE]
    shards = sorted(file for file in path.glob("model-*") if SHARD_NAME.fullmatch(file.name))
    found = SHARD_NAME.fullmatch(shards[0].name) if shards else None
    if found is None or len(shards) != int(found[1]):
        raise FileNotFoundError(f"{path} lacks {'a shard of its weights' if shards else WEIGHTS_FILE}")
    return shards


@contextmanager
def open_weights(path: Path, framework: str = "pt") -> Iterator[dict[str, Any]]:
    """Yield the open file of each tensor: `files[name].get_tensor(name)`. `path`: as for `list_weight_files`."""
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(file, framework)) for file in list_weight_files(path)]
        yield {name: file for file in files for name in file.keys()}  # noqa: SIM118 (not a dict)


def load_weights(path: Path) -> dict[str, Tensor]:
    """Return all tensors. `path`: as for `list_weight_files`."""
    with open_weights(path) as files:
        return {name: file.get_tensor(name) for name, file in files.items()}


def load_weights_into(model: nn.Module, path: Path) -> None:
    """Load all weights into a model, file by file. Raise RuntimeError if names or shapes differ.

    Each shared tensor is stored under one of its names.
    """
    from safetensors.torch import load_file

    loaded: set[str] = set()
    for file in list_weight_files(path):
        tensors = load_file(file)
        if unexpected := model.load_state_dict(tensors, strict=False).unexpected_keys:
            raise RuntimeError(f"the model has no {unexpected[0]}")
        loaded |= tensors.keys()
    state = model.state_dict(keep_vars=True)
    filled = {id(state[name]) for name in loaded}
    if missing := [name for name, tensor in state.items() if id(tensor) not in filled]:
        raise RuntimeError(f"the file has no {missing[0]}")


# --- JSON files -------------------------------------------------------------------------------------------------------


def atomic_write_json(file: Path, content: dict[str, Any]) -> None:
    """Write to a temporary file and rename it, so that a reader finds either the old content or the new."""
    temporary = file.with_name(f".{file.name}.partial")
    temporary.write_text(json.dumps(content, indent=1))
    temporary.replace(file)
