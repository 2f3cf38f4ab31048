"""A run: what it is made of, what makes it the same run, where it stopped and how it goes on."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from torch import nn
from torch.optim import Optimizer

from trainer import checkpoint, finetune
from trainer.budget import Budget, Spent
from trainer.config import ConfigError, Resolved, TrainConfig, as_saved
from trainer.data.dataset import Dataset
from trainer.data.loader import PackedLoader
from trainer.flops import Count, parameters
from trainer.integrity import Guard
from trainer.metrics import Metrics
from trainer.models.base import ArchitectureConfig, LanguageModel, Recipe
from trainer.randomness import random_state, restore_random_state

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass
class Window:
    """What the next train line will be about: the steps since the last one."""

    losses: float = 0.0
    steps: int = 0
    seconds: float = 0.0


@dataclass
class Run:
    """Everything the loop works with."""

    config: TrainConfig
    resolved: Resolved
    fabric: Fabric
    dataset: Dataset
    bare: LanguageModel
    """The model itself."""
    model: nn.Module
    """The same, compiled if asked for, in Fabric's hands: what training and evaluation call."""
    optimizers: list[Optimizer]
    recipe: Recipe
    counted: Count
    """What a token costs, by our own count."""
    guard: Guard
    loader: PackedLoader
    identity: dict[str, Any]
    """What must be the same to go on from a checkpoint."""
    lineage: dict[str, Any] | None = None
    """The checkpoint whose weights it started from, see `trainer.finetune`."""
    spent: Spent = field(default_factory=Spent)
    window: Window = field(default_factory=Window)
    dev: dict[str, float] = field(default_factory=dict)
    """The last evaluation."""
    clock: list[int] = field(default_factory=list)
    """Microseconds charged for each step, where the budget is in seconds: all that a replay of the run lacks."""

    @property
    def budget(self) -> Budget:
        return self.config.parsed_budget()

    @property
    def flops_per_token(self) -> float:
        return self.counted.per_token

    @property
    def fraction(self) -> float:
        """The used part of the budget."""
        tokens = self.resolved.tokens_per_step
        return self.budget.used(self.spent, tokens, tokens * self.flops_per_token)


def identity(
    config: TrainConfig,
    resolved: Resolved,
    model_config: ArchitectureConfig,
    recipe: Recipe,
    dataset: Dataset,
    lineage: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What makes two runs the same run; of plain JSON values."""
    found = {
        "arch": config.arch,
        "model": dataclasses.asdict(model_config),
        "recipe": dataclasses.asdict(recipe),
        "seed": config.seed,
        "budget": str(config.parsed_budget()),
        "dataset": dataset.hash,
        "train": dataclasses.asdict(resolved),
        "from": lineage and lineage["sha256"],
        "lora": dataclasses.asdict(config.lora) if config.lora.rank else None,
    }
    return json.loads(json.dumps(found))


def introduce(run: Run, console: Console) -> None:
    """Write `run.json` and the tokenizer, and say what was computed."""
    refuse_other_run(run)
    config, dataset, bare = run.config, run.dataset, run.bare
    manifest = dataset.manifest
    content = {
        "format": 1,
        "arch": config.arch,
        "model": run.identity["model"],
        "recipe": run.identity["recipe"],
        "seed": config.seed,
        "budget": run.identity["budget"],
        "dataset": {
            "hash": dataset.hash,
            "corpus": manifest["corpus"],
            "tokenizer": manifest["tokenizer"]["spec"],
            "tokenizer_sha256": dataset.tokenizer.sha256,
            "limit_bytes": manifest["limit_bytes"],
        },
        "parameters": parameters(bare),
        "flops_per_token": run.flops_per_token,
        "flops_void": run.counted.void,
        "flops_void_names": run.counted.names,
        "environment": environment(run.fabric.device),
        "from": run.lineage,
        "lora": run.identity["lora"],
        "config": as_saved(config, run.resolved),
        "identity": run.identity,
    }
    config.out.mkdir(parents=True, exist_ok=True)
    dataset.tokenizer.save(config.out / "tokenizer.json")
    write_whole(config.out / "run.json", content)
    numbers = ", ".join(f"{name} {value}" for name, value in dataclasses.asdict(run.resolved).items())
    console.print(
        f"{config.arch}, {content['parameters']['total']:,} parameters, {run.flops_per_token:.3g} FLOPs a token, "
        f"budget {run.budget}: {numbers}",
        highlight=False,
        soft_wrap=True,
    )
    if run.lineage is not None:
        console.print(finetune.described(run.lineage), highlight=False, soft_wrap=True)


def refuse_other_run(run: Run) -> None:
    """Raise `ConfigError` if the folder holds a run that is not this one."""
    if checkpoint.latest(run.config.out) is None or not (run.config.out / "run.json").is_file():
        return  # nothing to lose; a checkpoint that came without its run.json is checked by its own state
    compare(run, checkpoint.read_run(run.config.out).get("identity", {}))


def compare(run: Run, other: dict[str, Any]) -> None:
    different = [name for name, value in run.identity.items() if other.get(name) != value]
    if different:
        raise ConfigError(
            f"{run.config.out} holds a run with another {' and '.join(different)}: give the same, or an empty folder"
        )


def environment(device: torch.device) -> dict[str, Any]:
    """What the numbers may depend on beside the configuration."""
    packages = ("torch", "lightning", "numpy", "tokenizers")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def write_whole(file: Path, content: dict[str, Any]) -> None:
    """Write JSON aside and rename it: a reader finds the old content or the new."""
    aside = file.with_name(f".{file.name}.partial")
    aside.write_text(json.dumps(content, indent=1))
    aside.replace(file)


def resume(run: Run, console: Console) -> None:
    """Put the run where its newest checkpoint left it; do nothing if there is none."""
    folder = checkpoint.latest(run.config.out)
    metrics = Metrics(run.config.out / "metrics.jsonl")
    if folder is None:
        metrics.cut_back(-1)
        return
    compare(run, checkpoint.verified(folder).get("identity", {}))
    state = checkpoint.restore(folder, run.bare, run.optimizers)
    run.spent = Spent(**state["spent"])
    run.window = Window(**state["window"])
    run.dev = state["dev"]
    run.clock = state.get("clock", [])
    run.loader.restore(state["loader"])
    restore_random_state(state["random"])
    metrics.cut_back(run.spent.steps)
    console.print(f"going on from {folder.name}, {run.fraction:.0%} of the budget is used", highlight=False)


def keep(run: Run) -> Path:
    """Write a checkpoint and delete those too old."""
    folder = checkpoint.path(run.config.out, run.spent.steps)
    state = {
        "step": run.spent.steps,
        "spent": dataclasses.asdict(run.spent),
        "window": dataclasses.asdict(run.window),
        "dev": run.dev,
        "clock": run.clock,
        "loader": run.loader.state(),
        "random": random_state(),
        "identity": run.identity,
    }
    checkpoint.save(folder, run.bare, run.optimizers, state)
    checkpoint.prune(run.config.out, run.config.keep)
    return folder
