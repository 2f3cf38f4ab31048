"""litgpt's checkpoint folders: `lit_model.pth`, `model_config.yaml` and the tokenizer's files.

Weights are read with torch's weights-only reader, the configuration with yaml's safe one: neither runs a stranger's
code. Every family that litgpt's own GPT can be is read; its tokenizer has to be a byte-level BPE, as everywhere here.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import torch
import yaml
from litgpt import Config as OutsideConfig
from torch import Tensor

from trainer.checkpoint.environment import describe_environment
from trainer.checkpoint.formats import FormatError
from trainer.checkpoint.json_files import atomic_write_json
from trainer.checkpoint.store import describe_file, get_checkpoint_path, load_model, read_run, write_checkpoint
from trainer.data.tokenizer_spec import load_tokenizer
from trainer.errors import to_one_line
from trainer.models import litgpt

WEIGHTS, DESCRIPTION = "lit_model.pth", "model_config.yaml"
OURS = {"lm_head.": "head.", "transformer.": "gpt.transformer."}  # how names of its tensors begin, and ours


def is_litgpt_folder(folder: Path) -> bool:
    """Is this a checkpoint folder of litgpt's?"""
    return (folder / WEIGHTS).is_file()


def load_config(folder: Path, vocabulary_size: int = 0, sequence_length: int | None = None) -> litgpt.Config:
    """Return the folder's configuration as our architecture has it; raise `FormatError` if there is none to use.

    It keeps room for the folder's own vocabulary, or for `vocabulary_size` tokens if these are more (a tokenizer's
    special tokens often lie behind what litgpt counts). Without a length its own longest row is taken.
    """
    file = folder / DESCRIPTION
    try:
        said = yaml.safe_load(file.read_text(encoding="utf-8"))
        made = OutsideConfig(**said)
    except OSError as error:
        raise FormatError(f"cannot read {file}: {error.strerror}") from error
    except (TypeError, ValueError, AssertionError, ZeroDivisionError, yaml.YAMLError) as error:
        raise FormatError(f"{file} is not a configuration of litgpt's: {to_one_line(error)}") from error
    usual = OutsideConfig.from_name(made.name) if litgpt.is_known_config(made.name) else OutsideConfig()
    apart = ("name", "vocab_size", "block_size", "hf_config")
    fields = {
        name: value
        for name, value in dataclasses.asdict(made).items()
        if name not in apart and (value != getattr(usual, name) or name == "padded_vocab_size")
    }
    try:
        return litgpt.Config(
            max(made.vocab_size, vocabulary_size), sequence_length or made.block_size, made.name, fields
        )
    except ValueError as error:
        raise FormatError(f"{file}: {to_one_line(error)}") from error


def load_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the folder's weights under our names."""
    file = folder / WEIGHTS
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        raise FormatError(f"cannot read {file}: {error.strerror}") from error
    except (RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise FormatError(f"{file} is not a file of plain tensors as litgpt writes it") from error
    content = content.get("model", content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise FormatError(f"{file} does not hold one table of tensors")
    return {rename_tensor(str(name), OURS): value for name, value in content.items()}


def rename_tensor(name: str, beginnings: dict[str, str]) -> str:
    begins = next((begins for begins in beginnings if name.startswith(begins)), None)
    return name if begins is None else beginnings[begins] + name.removeprefix(begins)


def import_run(folder: Path, out: Path, sequence_length: int, tokenizer: Path | None = None) -> None:
    """Make a run folder of a checkpoint folder: its weights as the checkpoint of step 0."""
    if (out / "run.json").exists():
        raise FormatError(f"{out} holds a run already: give an empty folder")
    spoken = load_tokenizer(tokenizer or folder / "tokenizer.json")
    config = load_config(folder, spoken.vocabulary_size, sequence_length)
    model = litgpt.Model(config)
    try:
        model.load_state_dict(load_tensors(folder))
    except RuntimeError as error:
        raise FormatError(f"{folder / WEIGHTS} does not fit {DESCRIPTION}: {to_one_line(error)[:200]}") from error
    write_checkpoint(get_checkpoint_path(out, 0), model, [], {"step": 0})
    spoken.save(out / "tokenizer.json")
    content: dict[str, Any] = {
        "format": 1,
        "arch": "litgpt",
        "model": dataclasses.asdict(config),
        "recipe": dataclasses.asdict(litgpt.recipe(config)),
        "dataset": {"tokenizer_sha256": spoken.sha256},
        "parameters": {
            "total": sum(p.numel() for p in model.parameters()),
            "embedding": model.gpt.transformer.wte.weight.numel(),
        },
        "environment": describe_environment(torch.device("cpu")),
        "imported": {"format": "litgpt", "file": folder.name, "sha256": describe_file(folder / WEIGHTS).sha256},
    }
    atomic_write_json(out / "run.json", json.loads(json.dumps(content)))


def export_run(run: Path, out: Path, chosen: Path | None = None) -> None:
    """Write a run (its latest checkpoint) as a checkpoint folder that litgpt's own commands take."""
    model = load_model(run, chosen)
    if not isinstance(model, litgpt.Model):
        arch = read_run(run)["arch"]
        raise FormatError(f"{run} is of the architecture {arch}; the format litgpt holds only litgpt")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FormatError(f"{out} is not an empty folder")
    theirs = {begins: name for name, begins in OURS.items()}
    weights = {rename_tensor(name, theirs): value for name, value in model.state_dict().items()}
    try:
        out.mkdir(parents=True, exist_ok=True)
        torch.save({"model": weights}, out / WEIGHTS)
        (out / DESCRIPTION).write_text(yaml.safe_dump(dataclasses.asdict(model.config.to_litgpt())), encoding="utf-8")
        (out / "tokenizer.json").write_bytes((run / "tokenizer.json").read_bytes())
    except (OSError, RuntimeError) as error:
        raise FormatError(f"cannot write {out}: {to_one_line(error)}") from error
