"""The identity of a run: the content of `identity` in `run.json` and in each checkpoint's state."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.checkpoint.store import find_latest_checkpoint
from trainer.config.resolve import RESUMABLE_FIELDS, ResolvedConfig
from trainer.config.train_config import ConfigError, TrainConfig
from trainer.data.dataset import Dataset
from trainer.models.base import Recipe
from trainer.protocol.files import STATE_FILE


def describe_identity(
    config: TrainConfig,
    resolved: ResolvedConfig,
    fields: Mapping[str, Any],
    recipe: Recipe,
    dataset: Dataset,
    lineage: dict[str, Any] | None = None,
    graph: str | None = None,
) -> dict[str, Any]:
    """Return the identity, of plain JSON values. `fields`: of the model's Config; `graph`: the hash of its graphs."""
    identity = {
        "arch": config.arch,
        "model": dict(fields),
        "recipe": dataclasses.asdict(recipe),
        "seed": config.seed,
        "budget": str(config.parsed_budget),
        "dataset": dataset.hash,
        "train": dataclasses.asdict(resolved),
        "from": lineage and lineage["sha256"],
        "graph": graph,
        "lora": dataclasses.asdict(config.lora) if config.lora.rank else None,
    }
    return json.loads(json.dumps(identity))


def comparable_identity(identity: dict[str, Any]) -> dict[str, Any]:
    """Return the identity without `RESUMABLE_FIELDS`."""
    train = {name: value for name, value in identity.get("train", {}).items() if name not in RESUMABLE_FIELDS}
    return {**identity, "train": train}


def check_identity(run_folder: Path, saved: dict[str, Any], current: dict[str, Any]) -> None:
    """Raise `ConfigError` if the folder holds a different run. Fields of `train` that one of them lacks are equal."""
    old, new = comparable_identity(saved), comparable_identity(current)
    old["train"] = {name: old["train"].get(name, value) for name, value in new["train"].items()}
    different = [name for name, value in new.items() if old.get(name) != value]
    if different:
        names = " and ".join(different)
        raise ConfigError(f"{run_folder} holds a run with another {names}: use the same {names}, or an empty folder")


def read_saved_state(run_folder: Path) -> dict[str, Any]:
    """Return the newest checkpoint's state; only an empty `identity` if there is none or it cannot be read."""
    folder = find_latest_checkpoint(run_folder)
    try:
        state = json.loads((folder / STATE_FILE).read_bytes()) if folder is not None else {}
    except (OSError, ValueError):
        state = {}  # damaged: loading the checkpoint will report it
    saved = state.get("identity") if isinstance(state, dict) else None
    return state if isinstance(saved, dict) and isinstance(saved.get("train"), dict) else {"identity": {}}
