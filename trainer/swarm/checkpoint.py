"""A swarm run on disk: one folder a version, in it one file a stage, and an ordinary run's folder made of a version.

    versions/00000050/stage-0.safetensors    weights and AdamW's momenta
    versions/00000050/stage-0.json           written last: what it is, its size and sha256

A version is whole when all of its stages are there and of the same run. Stages are written one by one, by whoever holds
them; nobody waits for the others. `assemble` joins a version into `run.json` and `checkpoints/`, as `dailytrain train`
leaves them, so that `dailytrain score`, `sample`, `chat` and the rest read it.
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
from trainer.checkpoint import store
from trainer.checkpoint.environment import describe_environment
from trainer.checkpoint.json_files import atomic_write_json
from trainer.checkpoint.store import CheckpointError, as_os_error, reference, sync
from trainer.data.dataset import Dataset
from trainer.models import load_architecture
from trainer.models.base import LanguageModel
from trainer.swarm.config import SwarmConfig
from trainer.swarm.stage import whole_model

FOLDER = "versions"
NAME = re.compile(r"\d{8,}")


def folder_of(run_folder: Path, version: int) -> Path:
    return run_folder / FOLDER / f"{version:08d}"


def fingerprint(config: SwarmConfig) -> str:
    """Return the sha256 of what makes two runs the same run."""
    return hashlib.sha256(json.dumps(config.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def write_stage(run_folder: Path, config: SwarmConfig, stage: int, version: int, state: Mapping[str, Tensor]) -> Path:
    """Write a stage's state as of a version and return its file; all of it or nothing, safe to do twice."""
    folder = folder_of(run_folder, version)
    folder.mkdir(parents=True, exist_ok=True)
    file, aside = folder / f"stage-{stage}.safetensors", folder / f".stage-{stage}.partial"
    try:
        save_file(dict(state), aside)
    except (SafetensorError, RuntimeError) as error:
        aside.unlink(missing_ok=True)
        raise as_os_error(error, aside) from error
    sync(aside)
    aside.replace(file)
    written = reference(file)
    about = {"version": version, "stage": stage, "stages": config.stages, "config": fingerprint(config)}
    atomic_write_json(folder / f"stage-{stage}.json", {**about, "size": written.size, "sha256": written.sha256})
    sync(folder)
    return file


def about_stage(run_folder: Path, config: SwarmConfig, stage: int, version: int) -> dict[str, Any] | None:
    """Return what was written about a stage of a version; None if it is not there, or of another run."""
    try:
        about = json.loads((folder_of(run_folder, version) / f"stage-{stage}.json").read_bytes())
        size = (folder_of(run_folder, version) / f"stage-{stage}.safetensors").stat().st_size
    except (OSError, ValueError):
        return None
    expected = {"version": version, "stage": stage, "stages": config.stages, "config": fingerprint(config)}
    return about if isinstance(about, dict) and about.items() >= {**expected, "size": size}.items() else None


def versions(run_folder: Path, config: SwarmConfig) -> list[int]:
    """Return this run's whole versions, oldest first."""
    found = (int(f.name) for f in (run_folder / FOLDER).glob("*") if f.is_dir() and NAME.fullmatch(f.name))
    return [v for v in sorted(found) if all(about_stage(run_folder, config, s, v) for s in range(config.stages))]


def latest(run_folder: Path, config: SwarmConfig) -> int | None:
    """Return the newest whole version, where a run goes on that has lost a stage, or was stopped."""
    return next(reversed(versions(run_folder, config)), None)


def read_stage(run_folder: Path, config: SwarmConfig, stage: int, version: int) -> dict[str, Tensor]:
    """Return a stage's state as of a version, its content compared with its sha256; raise `CheckpointError`."""
    about = about_stage(run_folder, config, stage, version)
    file = folder_of(run_folder, version) / f"stage-{stage}.safetensors"
    if about is None:
        raise CheckpointError(f"{file} is not there whole, or of another run")
    if reference(file).sha256 != about["sha256"]:
        raise CheckpointError(f"{file} is damaged: delete {file.parent} to go on from the version before")
    return load_file(file)


def prune(run_folder: Path, config: SwarmConfig, keep: int) -> None:
    """Delete all but the newest `keep` whole versions, and what is older than those and not whole."""
    kept = versions(run_folder, config)[-keep:]
    for folder in (run_folder / FOLDER).glob("*"):
        if kept and NAME.fullmatch(folder.name) and int(folder.name) < kept[0]:
            for about in folder.glob("stage-*.json"):
                about.unlink(missing_ok=True)  # first, so that it is not whole any more
            shutil.rmtree(folder, ignore_errors=True)


# --- an ordinary run --------------------------------------------------------------------------------------------------


def assemble(
    run_folder: Path,
    config: SwarmConfig,
    dataset: Dataset,
    version: int | None = None,
    *,
    seconds: float = 0.0,
    dev: Mapping[str, float] | None = None,
) -> Path:
    """Join a whole version (the newest) into an ordinary run in the same folder; return its checkpoint's folder.

    `seconds`: of training so far; `dev`: the last evaluation, `loss` and `bits_per_byte`. Momenta stay where they are:
    the ordinary trainer does not go on with a swarm's run. Raise `CheckpointError` if no version is whole.
    """
    version = latest(run_folder, config) if version is None else version
    if version is None:
        raise CheckpointError(f"{run_folder} has no version with all of its {config.stages} stages")
    model = joined(run_folder, config, version)
    spent = spent_of(config, model, version, seconds)
    folder = store.path(run_folder, version)
    store.save(folder, model, [], {"step": version, "spent": spent, "identity": {}})
    dataset.tokenizer.save(run_folder / "tokenizer.json")
    atomic_write_json(run_folder / "run.json", described(config, dataset, model, spent))
    if dev is not None:
        atomic_write_json(run_folder / "result.json", result(run_folder, folder, spent, dev))
    return folder


def joined(run_folder: Path, config: SwarmConfig, version: int) -> LanguageModel:
    """Return the whole model of a version."""
    model, prefix = whole_model(config), "weight."
    states = (read_stage(run_folder, config, stage, version) for stage in range(config.stages))
    weights = {name.removeprefix(prefix): t for s in states for name, t in s.items() if name.startswith(prefix)}
    mine = dict(model.named_parameters())
    if mine.keys() != weights.keys():
        raise CheckpointError(f"version {version} does not have the parameters of {config.arch}, cut as configured")
    with torch.no_grad():
        for name, parameter in mine.items():
            parameter.copy_(weights[name])
    return model


def spent_of(config: SwarmConfig, model: LanguageModel, steps: int, seconds: float) -> dict[str, Any]:
    """Return what a run has used, as ordinary checkpoints have it."""
    row = torch.zeros(1, config.sequence_length, dtype=torch.int64)
    tokens = steps * config.micro_batches * config.micro_batch * config.sequence_length
    per_token = flops.count_flops(model, row).per_token
    return {"steps": steps, "tokens": tokens, "flops": tokens * per_token, "seconds": seconds}


def described(config: SwarmConfig, dataset: Dataset, model: LanguageModel, spent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `run.json`. The recipe is the swarm's own: one AdamW for everything."""
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
        "flops_per_token": spent["flops"] / spent["tokens"] if spent["tokens"] else None,
        "environment": describe_environment(torch.device("cpu")),
        "swarm": config.model_dump(mode="json"),
    }
    return json.loads(json.dumps(content))


def result(run_folder: Path, folder: Path, spent: Mapping[str, Any], dev: Mapping[str, float]) -> dict[str, Any]:
    return {
        "steps": spent["steps"],
        "step": spent["steps"],
        "tokens": spent["tokens"],
        "train_flops": spent["flops"],
        "train_seconds": spent["seconds"],
        "final_loss": dev["loss"],
        "bits_per_byte": dev["bits_per_byte"],
        "checkpoint": str(folder.relative_to(run_folder)),
    }
