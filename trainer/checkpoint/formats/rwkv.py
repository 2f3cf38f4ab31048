"""The official layout of RWKV-5 weights: a `.pth` with one table of tensors, named as in `trainer.models.rwkv5`.

Read by the packages `rwkv` and RWKV-LM. The file says neither the version nor the sizes: both are read off its tensors.
It is opened with torch's weights-only reader, which runs none of a stranger's code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import re
from pathlib import Path

import torch
from torch import Tensor

from trainer.checkpoint.environment import describe_environment
from trainer.checkpoint.formats import FormatError
from trainer.checkpoint.json_files import atomic_write_json
from trainer.checkpoint.store import get_checkpoint_path, load_model, read_run, write_checkpoint
from trainer.data.tokenizer import Tokenizer
from trainer.data.tokenizer_spec import load_tokenizer
from trainer.errors import to_one_line
from trainer.models import rwkv5

BLOCK = re.compile(r"blocks\.(\d+)\.")


def export_run(run: Path, out: Path, chosen: Path | None = None) -> None:
    """Write a run's weights (its latest checkpoint's) to `out`, in fp32."""
    model = load_model(run, chosen)
    if not isinstance(model, rwkv5.Model):
        arch = read_run(run)["arch"]
        raise FormatError(f"{run} is of the architecture {arch}; the format rwkv holds only rwkv5")
    aside = out.with_name(f".{out.name}.partial")
    try:
        torch.save(dict(model.state_dict()), aside)
        aside.replace(out)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError for a folder that is not there
        raise FormatError(f"cannot write {out}: {to_one_line(error)}") from error


def import_run(file: Path, out: Path, sequence_length: int, tokenizer: Path | None = None) -> None:
    """Make a run folder of an official file: its weights as the checkpoint of step 0, its own vocabulary size.

    `sequence_length` is the length of rows it is scored with, which the file does not say. Without a tokenizer the
    run can answer token ids but not text.
    """
    if (out / "run.json").exists():
        raise FormatError(f"{out} holds a run already: give an empty folder")
    tensors = read_tensors(file)
    config = infer_config(tensors, sequence_length)
    spoken = None if tokenizer is None else load_fitting_tokenizer(tokenizer, config)
    with torch.device("meta"):
        model = rwkv5.Model(config)
    assign_weights(model, tensors)
    write_checkpoint(get_checkpoint_path(out, 0), model, [], {"step": 0})
    if spoken is not None:
        spoken.save(out / "tokenizer.json")
    content = {
        "format": 1,
        "arch": "rwkv5",
        "model": dataclasses.asdict(config),
        "recipe": dataclasses.asdict(rwkv5.recipe(config)),
        "dataset": {} if spoken is None else {"tokenizer_sha256": spoken.sha256},
        "parameters": {"total": sum(p.numel() for p in model.parameters()), "embedding": model.emb.weight.numel()},
        "environment": describe_environment(torch.device("cpu")),
        "imported": {"format": "rwkv", "file": file.name, "sha256": hash_file(file)},
    }
    atomic_write_json(out / "run.json", json.loads(json.dumps(content)))


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the file's tensors in fp32."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise FormatError(f"cannot read {file}: {error.strerror}") from error
    except (RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise FormatError(f"{file} is not a file of plain tensors as torch.save writes it") from error
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise FormatError(f"{file} does not hold one table of tensors")
    return {str(name): value.float() for name, value in content.items()}


def infer_config(tensors: dict[str, Tensor], sequence_length: int) -> rwkv5.Config:
    """Read version and sizes off the tensors; raise `FormatError` for another generation of RWKV, or none."""
    if any("time_maa" in name for name in tensors) or any(name.endswith("att.r_k") for name in tensors):
        raise FormatError("these are weights of RWKV-6 or later; only RWKV-5 is known here")
    missing = {"emb.weight", "blocks.0.att.ln_x.weight", "blocks.0.att.time_decay"} - tensors.keys()
    if missing:
        raise FormatError(f"these are not weights of RWKV-5: there is no {min(missing)}")
    if tensors["emb.weight"].ndim != 2:
        raise FormatError("these are not weights of RWKV-5: emb.weight is no matrix")
    vocabulary_size, width = tensors["emb.weight"].shape
    gated = "blocks.0.att.gate.weight" in tensors
    per_channel = tensors["blocks.0.att.time_decay"].numel() == width
    depth = 1 + max(int(found[1]) for name in tensors if (found := BLOCK.match(name)))
    version = 5.2 if per_channel else 5.1 if gated else 5.0
    try:
        return rwkv5.Config(vocabulary_size, sequence_length, depth=depth, width=width, version=version)
    except ValueError as error:
        raise FormatError(to_one_line(error)) from error


def assign_weights(model: rwkv5.Model, tensors: dict[str, Tensor]) -> None:
    """Make the tensors the model's own. Dimensions of size 1 may differ: they did between releases."""
    wanted = model.state_dict()
    strange = sorted(wanted.keys() ^ tensors.keys())
    if strange:
        what = "lacks" if strange[0] in wanted else "has a surplus"
        raise FormatError(f"an RWKV-{model.config.version} of this size does not fit: the file {what} {strange[0]}")
    for name, tensor in tensors.items():
        if tensor.squeeze().shape != wanted[name].squeeze().shape:
            shapes = f"{tuple(tensor.shape)} where {tuple(wanted[name].shape)} is wanted"
            raise FormatError(f"an RWKV-{model.config.version} of this size does not fit: {name} is {shapes}")
    shaped = {name: tensor.view(wanted[name].shape) for name, tensor in tensors.items()}
    model.load_state_dict(shaped, assign=True)


def load_fitting_tokenizer(file: Path, config: rwkv5.Config) -> Tokenizer:
    """Load the tokenizer that the weights were trained with, or at least one whose tokens they know."""
    tokenizer = load_tokenizer(file)
    if tokenizer.vocabulary_size > config.vocabulary_size:
        sizes = f"{tokenizer.vocabulary_size} tokens, the model {config.vocabulary_size}"
        raise FormatError(f"{file} is not this model's tokenizer: it has {sizes}")
    return tokenizer


def hash_file(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
