"""A run: what it is made of, what makes it the same run, where it stopped and how it goes on."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from torch import nn
from torch.optim import Optimizer

from trainer.accounting.budget import Budget, Usage
from trainer.accounting.flops import FlopCount, count_parameters
from trainer.checkpoint import store
from trainer.checkpoint.background_writer import Writer
from trainer.checkpoint.environment import describe_environment
from trainer.checkpoint.json_files import atomic_write_json
from trainer.config.resolve import RESUMABLE_FIELDS, ResolvedConfig, serialize_config
from trainer.config.train_config import ConfigError, TrainConfig
from trainer.data.dataset import Dataset
from trainer.data.prefetch import PrefetchLoader
from trainer.models.base import ArchitectureConfig, LanguageModel, Recipe
from trainer.training.entry_integrity import EntryIntegrity
from trainer.training.finetune import describe_lineage
from trainer.training.grad_spikes import GradientSpikeFilter
from trainer.training.metrics import MetricsWriter
from trainer.training.objective import Objective
from trainer.training.random_state import get_random_state, restore_random_state

if TYPE_CHECKING:
    from lightning.fabric import Fabric


POSITION = ("tokens", "flops", "seconds")


@dataclass
class MetricsWindow:
    """What the next train line will be about: the steps since the last one."""

    losses: float = 0.0
    steps: int = 0
    seconds: float = 0.0


@dataclass
class Run:
    """Everything the loop works with."""

    config: TrainConfig
    resolved: ResolvedConfig
    fabric: Fabric
    dataset: Dataset
    raw_model: LanguageModel
    """The model itself."""
    objective: Objective
    """What is trained: the model with its loss."""
    model: nn.Module
    """The objective in Fabric's hands: what training and evaluation call."""
    optimizers: list[Optimizer]
    recipe: Recipe
    flop_count: FlopCount
    """What a token costs, by our own count."""
    integrity: EntryIntegrity
    spike_filter: GradientSpikeFilter
    loader: PrefetchLoader
    identity: dict[str, Any]
    """What must be the same to go on from a checkpoint."""
    lineage: dict[str, Any] | None = None
    """The checkpoint whose weights it started from, see `trainer.training.finetune`."""
    peak_flops: float | None = None
    """FLOP/s that one of its devices could do at most, see `trainer.training.precision`; None where nobody knows."""
    compile_seconds: float = 0.0
    """Spent by torch.compile before training, by this process and those before it."""
    writer: Writer = field(default_factory=Writer)
    last_checkpoint: Path | None = None
    """The newest checkpoint."""
    usage: Usage = field(default_factory=Usage)
    window: MetricsWindow = field(default_factory=MetricsWindow)
    dev: dict[str, float] = field(default_factory=dict)
    """The last evaluation."""
    step_microseconds: list[int] = field(default_factory=list)
    """Microseconds charged for each step, where the budget is in seconds: all that a replay of the run lacks."""

    @property
    def budget(self) -> Budget:
        return self.config.parsed_budget

    @property
    def flops_per_token(self) -> float:
        return self.flop_count.per_token

    @property
    def fraction(self) -> float:
        """The used part of the budget."""
        tokens = self.resolved.tokens_per_step
        return self.budget.used_fraction(self.usage, tokens, tokens * self.flops_per_token)

    def position(self) -> dict[str, float]:
        """What train and dev lines share."""
        return {"fraction": self.fraction, **{name: getattr(self.usage, name) for name in POSITION}}


def describe_identity(
    config: TrainConfig,
    resolved: ResolvedConfig,
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
        "budget": str(config.parsed_budget),
        "dataset": dataset.hash,
        "train": dataclasses.asdict(resolved),
        "from": lineage and lineage["sha256"],
        "lora": dataclasses.asdict(config.lora) if config.lora.rank else None,
    }
    return json.loads(json.dumps(found))


def log_run_summary(run: Run, console: Console) -> None:
    """Write `run.json` and the tokenizer, and say what was computed."""
    check_run_folder(run)
    write_run_json(run)
    total = count_parameters(run.raw_model)["total"]
    numbers = ", ".join(f"{name} {value}" for name, value in dataclasses.asdict(run.resolved).items())
    console.print(
        f"{run.config.arch}, {total:,} parameters, {run.flops_per_token:.3g} FLOPs a token, "
        f"budget {run.budget}: {numbers}",
        highlight=False,
        soft_wrap=True,
    )
    if run.loader.waste:
        console.print(
            f"rows begin with a document; {run.loader.waste:.1%} of the tokens are cropped away", highlight=False
        )
    if run.lineage is not None:
        console.print(describe_lineage(run.lineage), highlight=False, soft_wrap=True)


def write_run_json(run: Run) -> None:
    """Write `run.json` and the tokenizer, as far as this is the process that writes."""
    if not run.fabric.is_global_zero:
        return
    config, dataset, bare = run.config, run.dataset, run.raw_model
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
        "packing": {"kind": run.resolved.packing, "waste": run.loader.waste},
        "parameters": count_parameters(bare),
        "flops_per_token": run.flops_per_token,
        "flops_void": run.flop_count.void,
        "flops_void_names": run.flop_count.names,
        "environment": describe_environment(run.fabric.device),
        "peak_flops": run.peak_flops,
        "compile_seconds": run.compile_seconds,
        "from": run.lineage,
        "lora": run.identity["lora"],
        "config": serialize_config(config, run.resolved),
        "identity": run.identity,
    }
    config.out.mkdir(parents=True, exist_ok=True)
    dataset.tokenizer.save(config.out / "tokenizer.json")
    atomic_write_json(config.out / "run.json", content)


def check_run_folder(run: Run) -> None:
    """Raise `ConfigError` if the folder holds a run that is not this one."""
    if store.latest(run.config.out) is None or not (run.config.out / "run.json").is_file():
        return  # nothing to lose; a checkpoint that came without its run.json is checked by its own state
    check_identity(run, store.read_run(run.config.out).get("identity", {}))


def read_saved_identity(run_folder: Path) -> dict[str, Any]:
    """Return the identity of the run that the folder holds, as far as it can be read: empty if there is none."""
    folder = store.latest(run_folder)
    try:
        kept = json.loads((folder / "state.json").read_bytes())["identity"] if folder is not None else {}
    except (OSError, ValueError, KeyError):
        return {}  # damaged: that is told when it is loaded
    return kept if isinstance(kept, dict) and isinstance(kept.get("train"), dict) else {}


def comparable_identity(identity: dict[str, Any]) -> dict[str, Any]:
    """Return it without how the work is arranged, which a run may change on its way."""
    train = {name: value for name, value in identity.get("train", {}).items() if name not in RESUMABLE_FIELDS}
    return {**identity, "train": train}


def check_identity(run: Run, other: dict[str, Any]) -> None:
    kept, mine = comparable_identity(other), comparable_identity(run.identity)
    # What an older release did not write down yet is as it is now.
    kept["train"] = {**mine["train"], **kept["train"]}
    different = [name for name, value in mine.items() if kept.get(name) != value]
    if different:
        raise ConfigError(
            f"{run.config.out} holds a run with another {' and '.join(different)}: give the same, or an empty folder"
        )


def resume_run(run: Run, console: Console) -> None:
    """Put the run where its newest checkpoint left it; do nothing if there is none."""
    folder = store.latest(run.config.out)
    metrics = MetricsWriter(get_metrics_path(run))
    if folder is None:
        metrics.cut_back(-1)
        return
    kept = store.verified(folder).get("identity", {})
    check_identity(run, kept)
    state = store.restore(folder, run.raw_model, run.optimizers)
    run.usage = Usage(**state["spent"])
    run.window = MetricsWindow(**state["window"])
    run.dev = state["dev"]
    run.step_microseconds = state.get("clock", [])
    run.last_checkpoint = folder
    run.compile_seconds = state["compile_seconds"]
    run.spike_filter.restore(state["spikes"])
    run.loader.load_state_dict(state["loader"])
    restore_random_state(state["random"])
    metrics.cut_back(run.usage.steps)
    console.print(f"going on from {folder.name}, {run.fraction:.0%} of the budget is used", highlight=False)
    changed = [name for name in RESUMABLE_FIELDS if kept["train"].get(name) != run.identity["train"][name]]
    if changed:
        console.print(f"with another {' and '.join(changed)}: last digits will differ", highlight=False)


def get_metrics_path(run: Run) -> Path:
    """Where this process writes its lines: the run's file, or nowhere."""
    return run.config.out / "metrics.jsonl" if run.fabric.is_global_zero else Path(os.devnull)


def save_checkpoint(run: Run, beside: bool = False) -> Path:
    """Write a checkpoint and delete those too old; `beside`: only begin to, while training goes on.

    All processes take part, one writes. Raises OSError, `beside` a later call does, or `run.writer` when asked.
    """
    folder = store.path(run.config.out, run.usage.steps)
    state = {
        "step": run.usage.steps,
        "spent": dataclasses.asdict(run.usage),
        "window": dataclasses.asdict(run.window),
        "dev": run.dev,
        "clock": list(run.step_microseconds),
        "compile_seconds": run.compile_seconds,
        "spikes": run.spike_filter.state(),
        "loader": run.loader.state_dict(),
        "random": get_random_state(),
        "identity": run.identity,
    }
    content = store.snapshot(run.raw_model, run.optimizers)

    def write() -> None:
        store.write(folder, content, state)
        store.prune(run.config.out, run.config.keep)

    run.last_checkpoint = folder
    if run.fabric.is_global_zero:
        run.writer.begin(write)
        if not beside:
            run.writer.wait()
    return folder
