"""Checkpoints of a swarm run: one folder per version with one file per stage, and its assembly into an ordinary run.

    versions/00000050/stage-0.safetensors    weights and AdamW's moments
    versions/00000050/stage-0.json           metadata with size and sha256, written last

A version is complete when all of its stages are present and belong to this run. `assemble_run` joins a version into
`run.json` and `checkpoints/` in the format of `dailytrain train`, so that `dailytrain score`, `sample`, `chat` and the
other commands can read it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainer.accounting import flops
from trainer.checkpoint.files import atomic_write_json
from trainer.checkpoint.store import (
    CheckpointError,
    describe_environment,
    describe_file,
    find_os_error,
    fsync_path,
    get_checkpoint_path,
    write_checkpoint,
)
from trainer.data.dataset import Dataset
from trainer.models import load_architecture
from trainer.models.base import LanguageModel
from trainer.swarm.config import SwarmConfig
from trainer.swarm.stage import build_model

FOLDER = "versions"
VERSION_NAME = re.compile(r"\d{8,}")


def get_version_folder(run_folder: Path, version: int) -> Path:
    return run_folder / FOLDER / f"{version:08d}"


def hash_config(config: SwarmConfig) -> str:
    """Return the sha256 of a configuration, which identifies a run."""
    return hashlib.sha256(json.dumps(config.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def describe_stage(config: SwarmConfig, stage: int, version: int) -> dict[str, Any]:
    return {"version": version, "stage": stage, "stages": config.stages, "config": hash_config(config)}


def save_stage(run_folder: Path, config: SwarmConfig, stage: int, version: int, state: Mapping[str, Tensor]) -> Path:
    """Write a stage's state of a version atomically and return its file. Repeated calls are safe."""
    folder = get_version_folder(run_folder, version)
    folder.mkdir(parents=True, exist_ok=True)
    file, partial = folder / f"stage-{stage}.safetensors", folder / f".stage-{stage}.partial"
    try:
        save_file(dict(state), partial)
    except (SafetensorError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        raise find_os_error(error, partial) from error
    fsync_path(partial)
    partial.replace(file)
    written = describe_file(file)
    metadata = describe_stage(config, stage, version) | {"size": written.size, "sha256": written.sha256}
    atomic_write_json(folder / f"stage-{stage}.json", metadata)
    fsync_path(folder)
    return file


def read_metadata(run_folder: Path, config: SwarmConfig, stage: int, version: int) -> dict[str, Any] | None:
    """Return the metadata of a version's stage; None if it is missing or belongs to another run."""
    folder = get_version_folder(run_folder, version)
    try:
        metadata = json.loads((folder / f"stage-{stage}.json").read_bytes())
        size = (folder / f"stage-{stage}.safetensors").stat().st_size
    except (OSError, ValueError):
        return None
    expected = describe_stage(config, stage, version) | {"size": size}
    return metadata if isinstance(metadata, dict) and metadata.items() >= expected.items() else None


def list_versions(run_folder: Path, config: SwarmConfig) -> list[int]:
    """Return this run's complete versions, oldest first."""
    versions = (int(f.name) for f in (run_folder / FOLDER).glob("*") if f.is_dir() and VERSION_NAME.fullmatch(f.name))
    return [v for v in sorted(versions) if all(read_metadata(run_folder, config, s, v) for s in range(config.stages))]


def find_latest(run_folder: Path, config: SwarmConfig) -> int | None:
    """Return the newest complete version, or None."""
    return next(reversed(list_versions(run_folder, config)), None)


def load_stage(run_folder: Path, config: SwarmConfig, stage: int, version: int) -> dict[str, Tensor]:
    """Return a stage's state of a version after checking its sha256; raise `CheckpointError`."""
    metadata = read_metadata(run_folder, config, stage, version)
    file = get_version_folder(run_folder, version) / f"stage-{stage}.safetensors"
    if metadata is None:
        raise CheckpointError(f"{file} is missing, incomplete or belongs to another run")
    if describe_file(file).sha256 != metadata["sha256"]:
        raise CheckpointError(f"{file} is damaged: delete {file.parent} to resume from the version before")
    return load_file(file)


def prune_versions(run_folder: Path, config: SwarmConfig, keep: int) -> None:
    """Delete all but the newest `keep` complete versions, and incomplete versions older than those."""
    newest = list_versions(run_folder, config)[-keep:]
    for folder in (run_folder / FOLDER).glob("*"):
        if newest and VERSION_NAME.fullmatch(folder.name) and int(folder.name) < newest[0]:
            for metadata in folder.glob("stage-*.json"):
                metadata.unlink(missing_ok=True)  # first, so that the version is incomplete from now on
            shutil.rmtree(folder, ignore_errors=True)


# --- an ordinary run --------------------------------------------------------------------------------------------------


def assemble_run(
    run_folder: Path, config: SwarmConfig, dataset: Dataset, version: int | None = None, *, seconds: float = 0.0
) -> Path:
    """Join a complete version (default: the newest) into an ordinary run in the same folder; return its checkpoint.

    `seconds`: training time so far. The optimizer state is not included: the ordinary trainer cannot resume a swarm
    run. Raise `CheckpointError` without a complete version.
    """
    version = find_latest(run_folder, config) if version is None else version
    if version is None:
        raise CheckpointError(f"{run_folder} has no version with all of its {config.stages} stages")
    model = join_stages(run_folder, config, version)
    usage = compute_usage(config, model, version, seconds)
    folder = get_checkpoint_path(run_folder, version)
    write_checkpoint(folder, model, None, {"step": version, "spent": usage, "identity": {}})
    dataset.tokenizer.save(run_folder / "tokenizer.json")
    atomic_write_json(run_folder / "run.json", describe_run(config, dataset, model, usage))
    return folder


def join_stages(run_folder: Path, config: SwarmConfig, version: int) -> LanguageModel:
    """Return the whole model of a version."""
    model, prefix = build_model(config), "weight."
    weights: dict[str, Tensor] = {}
    for stage in range(config.stages):
        state = load_stage(run_folder, config, stage, version)
        weights |= {name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)}
    parameters = dict(model.named_parameters())
    if parameters.keys() != weights.keys():
        raise CheckpointError(f"version {version} does not have the parameters of {config.arch}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    return model


def compute_usage(config: SwarmConfig, model: LanguageModel, steps: int, seconds: float) -> dict[str, Any]:
    """Return a run's usage in the format of ordinary checkpoints."""
    row = torch.zeros(1, config.sequence_length, dtype=torch.int64)
    tokens = steps * config.tokens_per_step
    per_token = flops.count_flops(model, row)
    return {"steps": steps, "tokens": tokens, "flops": tokens * per_token, "seconds": seconds}


def describe_run(
    config: SwarmConfig, dataset: Dataset, model: LanguageModel, usage: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of `run.json`. A swarm uses one AdamW for all parameters instead of a recipe."""
    manifest, model_config = dataset.manifest, load_architecture(config.arch).Config(**config.model)
    content = {
        "format": 1,
        "arch": config.arch,
        "model": dataclasses.asdict(model_config),
        "seed": config.seed,
        "budget": f"{config.steps}steps",
        "dataset": {
            "hash": dataset.hash,
            "corpus": manifest["corpus"],
            "tokenizer": manifest["tokenizer"]["spec"],
            "tokenizer_sha256": dataset.tokenizer.sha256,
            "limit_bytes": manifest["limit_bytes"],
        },
        "parameters": flops.count_parameters(model),
        "flops_per_token": usage["flops"] / usage["tokens"] if usage["tokens"] else None,
        "environment": describe_environment(torch.device("cpu")),
        "swarm": config.model_dump(mode="json"),
    }
    return json.loads(json.dumps(content))
