"""What `import_run` of all formats shares: read a file of tensors, write the run's folder."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.accounting.flops import count_parameters
from trainer.checkpoint.environment import describe_environment
from trainer.checkpoint.formats import FormatError
from trainer.checkpoint.json_files import atomic_write_json
from trainer.checkpoint.store import describe_file, get_checkpoint_path, write_checkpoint
from trainer.data.tokenizer import Tokenizer
from trainer.models import load_architecture
from trainer.models.base import LanguageModel


def check_is_new(run_folder: Path) -> None:
    """Raise `FormatError` if the folder holds a run."""
    if (run_folder / "run.json").exists():
        raise FormatError(f"{run_folder} holds a run already: give an empty folder")


def read_tensors(file: Path, mmap: bool = False) -> dict[str, Tensor]:
    """Return the tensors of a `torch.save` file, with torch's weights-only reader: no code of the file runs."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except OSError as error:
        raise FormatError(f"cannot read {file}: {error.strerror}") from error
    except (RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise FormatError(f"{file} is not a file of plain tensors as torch.save writes it") from error
    content = content.get("model", content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise FormatError(f"{file} does not hold one table of tensors")
    return {str(name): value for name, value in content.items()}


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
        "imported": {"format": source_format, "file": source.name, "sha256": describe_file(source).sha256},
    }
    atomic_write_json(run_folder / "run.json", json.loads(json.dumps(content)))
