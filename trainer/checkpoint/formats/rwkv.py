"""The official layout of RWKV-5 weights: a `.pth` with one table of tensors, named as in `trainer.models.rwkv5`.

The package `rwkv` and RWKV-LM read it. The file names neither version nor sizes: both are inferred from its tensors.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from trainer.checkpoint.formats import FormatError
from trainer.checkpoint.formats.imported_run import check_fit, check_is_new, read_tensors, write_imported_run
from trainer.checkpoint.store import load_model, read_run
from trainer.data.tokenizer import Tokenizer, load_tokenizer
from trainer.errors import to_one_line
from trainer.models import rwkv5

BLOCK = re.compile(r"blocks\.(\d+)\.")


def export_run(run: Path, out: Path, checkpoint: Path | None = None) -> None:
    """Write a checkpoint's weights (default: the run's latest) to `out`, in fp32."""
    model = load_model(run, checkpoint)
    if not isinstance(model, rwkv5.Model):
        arch = read_run(run)["arch"]
        raise FormatError(f"{run} is of the architecture {arch}; the format rwkv holds only rwkv5")
    partial = out.with_name(f".{out.name}.partial")
    try:
        torch.save(dict(model.state_dict()), partial)
        partial.replace(out)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError for a folder that is not there
        raise FormatError(f"cannot write {out}: {to_one_line(error)}") from error


def import_run(file: Path, out: Path, sequence_length: int, tokenizer: Path | None = None) -> None:
    """Create a run folder from an official file, with the file's vocabulary size.

    `sequence_length`: of the rows it is scored with, which the file does not name. Without a tokenizer the run knows
    token ids but not text.
    """
    check_is_new(out)
    tensors = read_tensors(file)
    config = infer_config(tensors, sequence_length)
    loaded_tokenizer = None if tokenizer is None else load_fitting_tokenizer(tokenizer, config)
    with torch.device("meta"):
        model = rwkv5.Model(config)
    misfit = f"an RWKV-{config.version} of this size does not fit"
    fitting = check_fit(tensors, model.state_dict(), misfit)
    model.load_state_dict({name: value.float() for name, value in fitting.items()}, assign=True)
    write_imported_run(out, "rwkv5", model, loaded_tokenizer, "rwkv", file)


def infer_config(tensors: dict[str, Tensor], sequence_length: int) -> rwkv5.Config:
    """Infer version and sizes from the tensors; raise `FormatError` unless they are RWKV-5's."""
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
    depth = len({found[1] for name in tensors if (found := BLOCK.match(name))})  # without the others it does not fit
    version = 5.2 if per_channel else 5.1 if gated else 5.0
    try:
        return rwkv5.Config(vocabulary_size, sequence_length, depth=depth, width=width, version=version)
    except ValueError as error:
        raise FormatError(to_one_line(error)) from error


def load_fitting_tokenizer(file: Path, config: rwkv5.Config) -> Tokenizer:
    """Load the tokenizer that the weights were trained with, or at least one whose tokens they know."""
    tokenizer = load_tokenizer(file)
    if tokenizer.vocabulary_size > config.vocabulary_size:
        sizes = f"{tokenizer.vocabulary_size} tokens, the model {config.vocabulary_size}"
        raise FormatError(f"{file} is not this model's tokenizer: it has {sizes}")
    return tokenizer
