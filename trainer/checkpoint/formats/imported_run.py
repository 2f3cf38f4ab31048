"""What `import_run` of all formats shares: read a file of tensors, write the run's folder."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer.accounting.flops import count_parameters
from trainer.checkpoint.files import atomic_write_json
from trainer.checkpoint.formats import FormatError
from trainer.checkpoint.store import describe_environment, describe_file, get_checkpoint_path, write_checkpoint
from trainer.data.tokenizer import Tokenizer
from trainer.models import load_architecture
from trainer.models.base import LanguageModel

TABLES = ("model", "state_dict", "model_state_dict", "module", "weights")  # keys of the weights in a larger checkpoint
WRAPPERS = re.compile(r"_orig_mod\.|_fsdp_wrapped_module\.|_checkpoint_wrapped_module\.")
BUFFERS = re.compile(r"(^|\.)(inv_freq|masked_bias|mask_cache|cos|sin|position_ids|attn\.mask|kv_cache\..*)$")
SHARD_COUNT = re.compile(r"-of-0*([1-9]\d*)\.")
MAX_NUMBER = torch.finfo(torch.float32).max
MAX_EXPANDED_BYTES = 2**24
"""Of a tensor that repeats fewer numbers, such as a bias of one number."""


def check_is_new(run_folder: Path) -> None:
    """Raise `FormatError` if the folder holds a run."""
    if (run_folder / "run.json").exists():
        raise FormatError(f"{run_folder} holds a run already: give an empty folder")


def read_tensors(source: Path, mmap: bool = False) -> dict[str, Tensor]:
    """Return the tensors of a file or of a folder of shards, by the names of the model that was saved.

    Files of `torch.save` are read with torch's weights-only reader and safetensors with its own: no code of a file
    runs. Raise `FormatError` for tensors that are no weights, such as NaN.
    """
    tensors: dict[str, Tensor] = {}
    for file in list_files(source):
        for name, tensor in read_file(file, mmap).items():
            if name in tensors:
                raise FormatError(f"{source} has {name} twice")
            tensors[name] = check_numbers(file, name, tensor)
    return strip_wrappers(source, tensors)


def list_files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    # A folder of the Hub often has the weights in two formats, and a `training_args.bin` beside them.
    patterns = [f"{name}.{ending}" for name in ("*-of-*", "*model", "*") for ending in ("safetensors", "bin", "pth")]
    files = next(filter(None, (sorted(source.glob(pattern)) for pattern in patterns)), [])
    shards = [file for file in files if SHARD_COUNT.search(file.name)]
    counts = {int(found[1]) for file in files if (found := SHARD_COUNT.search(file.name))}
    if not files or (shards and counts != {len(shards)}):
        raise FormatError(f"{source} lacks {'a shard of its weights' if files else 'files of weights'}")
    if not shards and len(files) > 1:
        raise FormatError(f"{source} has several files of weights: name one of {', '.join(f.name for f in files[:4])}")
    return files


def read_file(file: Path, mmap: bool) -> dict[str, Tensor]:
    try:
        if is_safetensors(file):
            with safe_open(file, "pt") as opened:
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
                # safetensors stores a shared tensor once and its other names in the metadata.
                tied = (opened.metadata() or {}).items()
            return {**{name: tensors[kept] for name, kept in tied if kept in tensors}, **tensors}
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except OSError as error:
        raise FormatError(f"cannot read {file}: {error.strerror or error}") from error
    except (RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError, SafetensorError) as error:
        raise FormatError(f"{file} is not a file of plain tensors as torch.save or safetensors writes it") from error
    while isinstance(content, dict) and (
        inner := [content[key] for key in TABLES if isinstance(content.get(key), dict)]
    ):
        content = inner[0]
    if not isinstance(content, dict):
        raise FormatError(f"{file} does not hold one table of tensors, but {type(content).__name__}")
    if other := [name for name, value in content.items() if not isinstance(value, Tensor)]:
        kind = type(content[other[0]]).__name__
        raise FormatError(f"{file} does not hold one table of tensors: {str(other[0])[:80]!r} is of the type {kind}")
    return {str(name): value for name, value in content.items()}


def is_safetensors(file: Path) -> bool:
    with file.open("rb") as opened:
        start = opened.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < file.stat().st_size


def check_numbers(file: Path, name: str, tensor: Tensor) -> Tensor:
    """Return the tensor; raise `FormatError` if it is quantized, or has NaN or numbers beyond single precision."""
    if tensor.layout != torch.strided or tensor.is_meta:
        raise FormatError(f"{file}: {name} is {'without numbers' if tensor.is_meta else 'sparse'}, not a plain tensor")
    if not tensor.is_floating_point() or tensor.element_size() < 2:
        if tensor.dtype in (torch.bool, torch.int32, torch.int64):
            return tensor  # a buffer, such as positions
        raise FormatError(
            f"{file}: {name} is {str(tensor.dtype).removeprefix('torch.')}; quantized weights are not read"
        )
    if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size() > MAX_EXPANDED_BYTES:
        raise FormatError(
            f"{file}: {name} has fewer numbers than its shape {tuple(tensor.shape)}: it is an expanded view"
        )
    if tensor.numel():
        smallest, largest = (float(value) for value in torch.aminmax(tensor))
        if not (smallest >= -MAX_NUMBER and largest <= MAX_NUMBER):
            raise FormatError(
                f"{file}: {name} has NaN or infinite numbers, so it is not the weights of a trained model"
            )
    return tensor


def strip_wrappers(source: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without what DDP, FSDP, torch.compile and Lightning add to their names."""
    names = {name: WRAPPERS.sub("", name) for name in tensors}
    for prefix in ("module.", "_forward_module.", "model."):
        if names and all(name.startswith(prefix) for name in names.values()):
            names = {name: short.removeprefix(prefix) for name, short in names.items()}
    if len(set(names.values())) < len(names):
        raise FormatError(f"{source} has tensors that differ only in the prefix of their names")
    return {names[name]: tensor for name, tensor in tensors.items()}


def check_fit(tensors: dict[str, Tensor], expected: Mapping[str, Tensor], misfit: str) -> dict[str, Tensor]:
    """Return the tensors in the shapes of the model. Raise `FormatError` with names if they do not fit.

    Dimensions of size 1 may differ. Buffers that a model computes itself are left out.
    """
    tensors = {name: tensor for name, tensor in tensors.items() if name in expected or not BUFFERS.search(name)}
    for problem, names in (
        ("lacks", expected.keys() - tensors.keys()),
        ("has a surplus", tensors.keys() - expected.keys()),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise FormatError(f"{misfit}: the file {problem} {min(names)}{more}")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() < expected[name].is_floating_point():
            raise FormatError(f"{misfit}: {name} has whole numbers instead of weights")
        if tensor.squeeze().shape != expected[name].squeeze().shape:
            shapes = f"{tuple(tensor.shape)} instead of {tuple(expected[name].shape)}"
            raise FormatError(f"{misfit}: {name} is {shapes}")
    return {name: tensor.reshape(expected[name].shape) for name, tensor in tensors.items()}


def write_imported_run(
    run_folder: Path, arch: str, model: LanguageModel, tokenizer: Tokenizer | None, source_format: str, source: Path
) -> None:
    """Write a run's folder, with the weights as the checkpoint of step 0."""
    write_checkpoint(get_checkpoint_path(run_folder, 0), model, None, {"step": 0})
    if tokenizer is not None:
        tokenizer.save(run_folder / "tokenizer.json")
    content: dict[str, Any] = {
        "format": 1,
        "arch": arch,
        "model": dataclasses.asdict(model.config),
        "recipe": dataclasses.asdict(load_architecture(arch).recipe(model.config)),
        "dataset": {} if tokenizer is None else {"tokenizer_sha256": tokenizer.sha256},
        "parameters": count_parameters(model),
        "environment": describe_environment(torch.device("cpu")),
        "imported": {
            "format": source_format,
            "file": source.name,
            "sha256": [describe_file(file).sha256 for file in list_files(source)],
        },
    }
    atomic_write_json(run_folder / "run.json", json.loads(json.dumps(content)))
