"""Checkpoints to start from (`--from`): a run, one of its checkpoints, or a folder in litgpt's format."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer.checkpoint.files import get_checkpoint_step, list_checkpoints, list_weight_files, load_weights
from trainer.checkpoint.store import (
    MILESTONES_FOLDER,
    CheckpointError,
    describe_file,
    find_latest_checkpoint,
    get_checkpoint_path,
    read_run,
    verify_checkpoint,
)
from trainer.data.dataset import Dataset
from trainer.data.tokenizer import Tokenizer, load_tokenizer
from trainer.models import PRESETS
from trainer.optim import lora
from trainer.protocol.files import CHECKPOINTS_FOLDER

LITGPT_WEIGHTS = "lit_model.pth"


@dataclass(frozen=True)
class BaseCheckpoint:
    """The description of a checkpoint."""

    folder: Path
    name: str  # for `run.json`: the run's folder and the checkpoint's, without their location
    arch: str
    model: dict[str, Any]  # the fields of its architecture's Config
    step: int
    tokens: int  # tokens trained on up to here, including those of the checkpoints it started from
    tokenizer: Path | None
    tokenizer_sha256: str | None  # None where the checkpoint has no tokenizer and does not name one
    is_litgpt: bool

    def load_tensors(self) -> dict[str, Tensor]:
        """Read the weights and check them against their manifest if there is one; adapters are merged."""
        if self.is_litgpt:
            from trainer.checkpoint.formats import litgpt

            return litgpt.load_tensors(self.folder)
        verify_checkpoint(self.folder, optimizer=False)
        return lora.merge_adapter_tensors(load_weights(self.folder))

    def hash_weights(self) -> str:
        """Return the sha256 of the weights file; of shards, that of their hexadecimal hashes in order."""
        files = [self.folder / LITGPT_WEIGHTS] if self.is_litgpt else list_weight_files(self.folder)
        first, *others = hashes = [describe_file(file).sha256 for file in files]
        return hashlib.sha256("".join(hashes).encode()).hexdigest() if others else first

    def matches_tokenizer(self, tokenizer: Tokenizer) -> bool:
        """Return whether this is its tokenizer. A checkpoint without one accepts any that fits its vocabulary."""
        if self.tokenizer_sha256 is None:
            return tokenizer.vocabulary_size <= self.model["vocabulary_size"]
        return self.tokenizer_sha256 == tokenizer.sha256

    def get_inherited_fields(self, arch: str) -> dict[str, Any]:
        """Return the fields of the checkpoint's Config that a model of the same family inherits."""
        return self.model if get_family(self.arch) == get_family(arch) else {}

    def get_config_defaults(self) -> dict[str, Any]:
        """Return the defaults of a run that starts here: architecture, size, row length and tokenizer.

        litgpt's row length is left out: it is the longest possible one, not the one trained on.
        """
        depth = {"depth": self.model["depth"]} if "depth" in self.model else {}
        rows = {} if self.is_litgpt else {"sequence_length": self.model["sequence_length"]}
        tokenizer = {} if self.tokenizer is None else {"tokenizer": str(self.tokenizer)}
        return {"arch": self.arch, "model": depth, "train": rows, **tokenizer}


def find_base_checkpoint(folder: Path, step: int | None = None) -> BaseCheckpoint:
    """Return the checkpoint at a folder: a run's newest one, or the one of `step`. Raise `CheckpointError` if none."""
    if step is not None:
        folder = find_checkpoint_of_step(folder, step)
    if (folder / LITGPT_WEIGHTS).is_file():
        return describe_litgpt_folder(folder)
    if (folder / "run.json").is_file():
        newest = find_latest_checkpoint(folder)
        if newest is None:
            raise CheckpointError(f"--from {folder}: this run has no complete checkpoint")
        return describe_run_checkpoint(folder, newest)
    if folder.parent.name in (CHECKPOINTS_FOLDER, MILESTONES_FOLDER) and (folder.parent.parent / "run.json").is_file():
        return describe_run_checkpoint(folder.parent.parent, folder)
    raise CheckpointError(f"--from {folder} is neither a run's folder, nor one of its checkpoints, nor one of litgpt's")


def find_checkpoint_of_step(run_folder: Path, step: int) -> Path:
    if not (run_folder / "run.json").is_file():
        raise CheckpointError(f"--step needs --from with a run's folder, and {run_folder} is not one")
    folder, saved = get_checkpoint_path(run_folder, step), list_checkpoints(run_folder)
    if folder not in saved:
        known = ", ".join(str(get_checkpoint_step(other)) for other in saved) or "none"
        raise CheckpointError(f"--from {run_folder}: there is no checkpoint of step {step}; it has {known}")
    return folder


def describe_run_checkpoint(run_folder: Path, folder: Path) -> BaseCheckpoint:
    run, state = read_run(run_folder), verify_checkpoint(folder, weights=False, optimizer=False)
    tokenizer = run_folder / "tokenizer.json"
    recorded_sha256 = (run.get("dataset") or {}).get("tokenizer_sha256")
    return BaseCheckpoint(
        folder=folder,
        name=f"{run_folder.resolve().name}/{folder.name}",
        arch=run["arch"],
        model=run["model"],
        step=state["step"],
        tokens=(run.get("from") or {}).get("tokens", 0) + state.get("spent", {}).get("tokens", 0),
        tokenizer=tokenizer if tokenizer.is_file() else None,
        tokenizer_sha256=load_tokenizer(tokenizer).sha256 if tokenizer.is_file() else recorded_sha256,
        is_litgpt=False,
    )


def describe_litgpt_folder(folder: Path) -> BaseCheckpoint:
    from trainer.checkpoint.formats import litgpt

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(f"--from {folder}: it has no tokenizer.json")
    tokenizer = load_tokenizer(file)
    config = litgpt.load_config(folder, tokenizer.vocabulary_size)
    return BaseCheckpoint(
        folder=folder,
        name=folder.resolve().name,
        arch="litgpt",
        model=dataclasses.asdict(config),
        step=0,
        tokens=0,
        tokenizer=file,
        tokenizer_sha256=tokenizer.sha256,
        is_litgpt=True,
    )


def choose_vocabulary_size(base: BaseCheckpoint, dataset: Dataset, has_dataset: bool) -> int:
    """Return the new model's vocabulary size: the tokenizer's, or the checkpoint's if the tokens are the same.

    Raise `CheckpointError` if `--dataset` (`has_dataset`) has other tokens than the checkpoint. With another
    `--tokenizer` the model gets a new embedding.
    """
    tokenizer_size = dataset.tokenizer.vocabulary_size
    if base.matches_tokenizer(dataset.tokenizer):
        return max(tokenizer_size, base.model["vocabulary_size"])
    if has_dataset:
        remedy = f"--tokenizer {base.tokenizer}" if base.tokenizer else "that one"
        raise CheckpointError(
            f"--dataset {dataset.folder} was prepared with another tokenizer than {base.name} was trained with: "
            f"prepare it with {remedy}, or give --corpus instead"
        )
    return tokenizer_size


def get_family(arch: str) -> str:
    """Return the architecture that a preset size belongs to."""
    return PRESETS[arch][0] if arch in PRESETS else arch
