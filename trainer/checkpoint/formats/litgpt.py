"""litgpt's checkpoint folders: `lit_model.pth`, `model_config.yaml` and the tokenizer's files.

Weights are read with torch's weights-only reader and the configuration with yaml's safe one: neither runs code of the
file. Supports every family of litgpt's own GPT. The tokenizer must be a byte-level BPE.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
import yaml
from litgpt import Config as LitGPTConfig
from torch import Tensor

from trainer.checkpoint.formats import FormatError
from trainer.checkpoint.formats.imported_run import check_fit, check_is_new, read_tensors, write_imported_run
from trainer.checkpoint.store import load_model, read_run
from trainer.data.tokenizer import load_tokenizer
from trainer.errors import to_one_line
from trainer.models import litgpt
from trainer.text_files import decode_text

WEIGHTS, DESCRIPTION = "lit_model.pth", "model_config.yaml"
PREFIXES = {"lm_head.": "head.", "transformer.": "gpt.transformer."}  # of tensor names: litgpt's -> ours


def load_config(folder: Path, vocabulary_size: int = 0, sequence_length: int | None = None) -> litgpt.Config:
    """Return the folder's configuration as our architecture's; raise `FormatError` if it cannot be used.

    The vocabulary has at least `vocabulary_size` tokens, since litgpt often does not count a tokenizer's special
    tokens. Default `sequence_length`: litgpt's longest row.
    """
    file = folder / DESCRIPTION
    try:
        config = LitGPTConfig(**yaml.safe_load(decode_text(file.read_bytes())))
    except OSError as error:
        raise FormatError(f"cannot read {file}: {error.strerror}") from error
    except (TypeError, ValueError, AssertionError, ZeroDivisionError, yaml.YAMLError) as error:
        raise FormatError(f"{file} is not a configuration of litgpt's: {to_one_line(error)}") from error
    default = LitGPTConfig.from_name(config.name) if litgpt.is_known_config(config.name) else LitGPTConfig()
    separate = ("name", "vocab_size", "block_size", "hf_config")
    fields = {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if name not in separate and (value != getattr(default, name) or name == "padded_vocab_size")
    }
    vocabulary_size = max(config.vocab_size, vocabulary_size)
    try:
        return litgpt.Config(vocabulary_size, sequence_length or config.block_size, config.name, fields)
    except ValueError as error:
        raise FormatError(f"{file}: {to_one_line(error)}") from error


def load_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the folder's weights under our names."""
    return {rename_tensor(name, PREFIXES): value for name, value in read_tensors(folder / WEIGHTS, mmap=True).items()}


def rename_tensor(name: str, prefixes: dict[str, str]) -> str:
    prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
    return name if prefix is None else prefixes[prefix] + name.removeprefix(prefix)


def import_run(folder: Path, out: Path, sequence_length: int, tokenizer: Path | None = None) -> None:
    """Create a run folder from a checkpoint folder."""
    check_is_new(out)
    loaded_tokenizer = load_tokenizer(tokenizer or folder / "tokenizer.json")
    model = litgpt.Model(load_config(folder, loaded_tokenizer.vocabulary_size, sequence_length))
    misfit = f"{folder / WEIGHTS} does not fit {DESCRIPTION}"
    model.load_state_dict(check_fit(load_tensors(folder), model.state_dict(), misfit))
    write_imported_run(out, "litgpt", model, loaded_tokenizer, "litgpt", folder / WEIGHTS)


def export_run(run: Path, out: Path, checkpoint: Path | None = None) -> None:
    """Write a run's checkpoint (default: the latest) as a checkpoint folder for litgpt's own commands."""
    model = load_model(run, checkpoint)
    if not isinstance(model, litgpt.Model):
        arch = read_run(run)["arch"]
        raise FormatError(f"{run} is of the architecture {arch}; the format litgpt is only for litgpt")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FormatError(f"{out} is not an empty folder")
    reverse = {ours: theirs for theirs, ours in PREFIXES.items()}
    weights = {rename_tensor(name, reverse): value for name, value in model.state_dict().items()}
    try:
        out.mkdir(parents=True, exist_ok=True)
        torch.save({"model": weights}, out / WEIGHTS)
        (out / DESCRIPTION).write_text(yaml.safe_dump(dataclasses.asdict(model.config.to_litgpt())), encoding="utf-8")
        (out / "tokenizer.json").write_bytes((run / "tokenizer.json").read_bytes())
    except (OSError, RuntimeError) as error:
        raise FormatError(f"cannot write {out}: {to_one_line(error)}") from error
