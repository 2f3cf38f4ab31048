"""Write a run's folder (checkpoints, `run.json`, `result.json`) and resume from it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.optim import Optimizer

from trainer.accounting.budget import Usage
from trainer.accounting.flops import count_parameters
from trainer.checkpoint.files import atomic_write_json
from trainer.checkpoint.store import (
    MILESTONES_FOLDER,
    CheckpointError,
    CheckpointSnapshot,
    describe_environment,
    find_latest_checkpoint,
    get_checkpoint_path,
    prune_checkpoints,
    read_run,
    restore_checkpoint,
    take_snapshot,
    verify_checkpoint,
    write_snapshot,
)
from trainer.config.train_config import RESUMABLE_FIELDS, ConfigError, ResolvedConfig, TrainConfig, serialize_config
from trainer.data.dataset import Dataset
from trainer.data.shards import write_file
from trainer.errors import UnusableCheckpointError, UserError, is_machine_failure, to_one_line
from trainer.graph.files import TracedArchitecture
from trainer.models import PRESETS
from trainer.models.base import Recipe
from trainer.ops.attention import describe_kernels
from trainer.protocol.files import OPTIMIZER_FILE, STATE_FILE
from trainer.training.metrics import MetricsWriter
from trainer.training.run import MetricsWindow, Run

# --- the identity of a run --------------------------------------------------------------------------------------------
# The identity of a run: the content of `identity` in `run.json` and in each checkpoint's state.


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


CLOCK_ROUNDING = 1e-6
"""Relative difference of a sum of many steps' seconds from that of their microseconds."""


def save_checkpoint(run: Run, *, wait: bool = True, is_final: bool = False) -> Path:
    """Write a checkpoint and delete those too old. All processes take part, one writes.

    With `wait` false it is written in the background; the next call or `run.writer` then raises its OSError. The final
    one has no optimizer state.
    """
    folder = get_checkpoint_path(run.config.out, run.usage.steps)
    state = {
        "step": run.usage.steps,
        "spent": dataclasses.asdict(run.usage),
        "window": dataclasses.asdict(run.window),
        "dev": run.dev,
        "clock": list(run.step_microseconds),
        "compile_seconds": run.compile_seconds,
        **run.compute_mfu(run.usage.tokens / run.usage.seconds if run.usage.seconds else 0.0),
        "spikes": run.spike_filter.state_dict(),
        "loader": run.loader.state_dict(),
        "threads": torch.get_num_threads(),
        "identity": run.identity,
    }
    content = take_run_snapshot(run, None if is_final else run.optimizers)

    def write() -> None:
        write_snapshot(folder, content, state)
        prune_checkpoints(run.config.out, run.config.keep)

    run.last_checkpoint = folder
    if run.fabric.is_global_zero:
        run.writer.begin(write)
        if wait:
            run.writer.wait()
    return folder


def save_milestone(run: Run, percent: int) -> None:
    """Write the weights in bf16 in the background, as those of a percentage of the budget. All processes take part."""
    folder = run.config.out / MILESTONES_FOLDER / get_checkpoint_path(run.config.out, run.usage.steps).name
    state = {"step": run.usage.steps, "spent": dataclasses.asdict(run.usage)}
    content = take_run_snapshot(run, None, torch.bfloat16)
    if run.fabric.is_global_zero:
        run.writer.begin(lambda: write_snapshot(folder, content, state, milestone=percent))


def take_run_snapshot(
    run: Run, optimizers: Sequence[Optimizer] | None, dtype: torch.dtype | None = None
) -> CheckpointSnapshot:
    """Copy what a checkpoint needs, off a GPU into buffers that all checkpoints of the run share."""
    assert run.unread is None, "what diverged is never saved"
    if run.host_buffers is not None:
        run.writer.wait()  # which reads them
    return take_snapshot(run.model, optimizers, dtype, run.host_buffers)


def resume_run(run: Run, console: Console) -> None:
    """Restore the newest checkpoint if there is one: that of the first process, which may still be writing it."""
    folder = run.fabric.broadcast(find_latest_checkpoint(run.config.out))
    metrics = MetricsWriter(run.metrics_path)
    if folder is None:
        metrics.truncate(-1)
        return
    try:
        restore_run(run, folder)
    except Exception as error:
        if is_machine_failure(error) or (
            isinstance(error.__cause__, Exception) and is_machine_failure(error.__cause__)
        ):
            raise
        message = to_one_line(error) if isinstance(error, UserError) else f"{folder} is damaged: {error!r}"
        raise UnusableCheckpointError(message) from error
    metrics.truncate(run.usage.steps)
    console.print(f"resuming from {folder.name}, {run.fraction:.0%} of the budget is used", highlight=False)


def restore_run(run: Run, folder: Path) -> None:
    """Load a checkpoint into the run."""
    state = verify_checkpoint(folder)
    check_identity(run.config.out, state.get("identity", {}), run.identity)
    restore_checkpoint(folder, run.model, run.optimizers)
    run.usage = Usage(**state["spent"])
    check_usage(run, state)
    if run.fraction < 1 and not (folder / OPTIMIZER_FILE).is_file():
        raise CheckpointError(f"{folder} has no {OPTIMIZER_FILE} to resume with: start a new run --from it")
    run.window = MetricsWindow(**state["window"])
    run.dev = state["dev"]
    run.step_microseconds = state.get("clock", [])
    run.last_checkpoint = folder
    run.compile_seconds = state["compile_seconds"]
    run.spike_filter.load_state_dict(state["spikes"])
    run.loader.load_state_dict(state["loader"])


def check_usage(run: Run, state: Mapping[str, Any]) -> None:
    """Raise `CheckpointError` unless the used budget follows from the step: a node could train more than it charges."""
    usage = run.usage
    is_valid = usage.steps == state["step"] and usage.tokens == usage.steps * run.resolved.tokens_per_step
    if run.budget.kind == "seconds":
        clock = state.get("clock", [])
        is_valid &= len(clock) == usage.steps and min(clock, default=0) >= 0
        is_valid &= abs(sum(clock) / 1e6 - usage.seconds) <= CLOCK_ROUNDING * max(1.0, usage.seconds)
    if not is_valid:
        raise CheckpointError(
            f"the budget that the checkpoint of step {state['step']} has used is not that of its step"
        )


def check_run_folder(run: Run) -> None:
    """Raise `ConfigError` if the folder holds another run."""
    if find_latest_checkpoint(run.config.out) is not None and (run.config.out / "run.json").is_file():
        check_identity(run.config.out, read_run(run.config.out).get("identity", {}), run.identity)


def log_run_summary(run: Run, saved: Mapping[str, Any], console: Console) -> None:
    """Print the computed configuration, wasted tokens and lineage. `saved`: settings of the run that is resumed."""
    total = count_parameters(run.model)["total"]
    settings = dataclasses.asdict(run.resolved)
    if run.config.graph is not None or run.config.arch in PRESETS:  # the size is the graph's own, or a fixed one
        del settings["depth"]
    size = f"{total:,} parameters, {run.flops_per_token:.3g} FLOPs a token"
    described = ", ".join(f"{name} {value}" for name, value in settings.items())
    lines = [f"{run.config.arch}, {size}, budget {run.budget}: {described}"]
    if run.fabric.device.type == "cuda":
        lines.append(f"attention: {describe_kernels(run.fabric.device)}")
    if run.loader.waste:
        lines.append(f"rows begin with a document; {run.loader.waste:.1%} of the tokens are cropped away")
    if run.lineage is not None:
        from trainer.training.finetune import describe_lineage

        lines.append(describe_lineage(run.lineage))
    changed = [name for name in RESUMABLE_FIELDS if saved and saved.get(name) != run.identity["train"][name]]
    if changed:
        lines.append(f"{' and '.join(changed)} changed: the last digits of results will differ")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def write_run_json(run: Run) -> None:
    """Write `run.json` and the tokenizer if this is the process that writes."""
    if not run.fabric.is_global_zero:
        return
    config, dataset = run.config, run.dataset
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
        "parameters": count_parameters(run.model),
        "flops_per_token": run.flops_per_token,
        "window_flops_per_token": run.window_flops_per_token,
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
    if run.traced is not None:
        write_graph_files(run.traced, config.out / "graph")
    atomic_write_json(config.out / "run.json", content)


def write_graph_files(traced: TracedArchitecture, folder: Path) -> None:
    """Write the graphs that a run resumes with, each file atomically; leave a file of equal content as it is."""
    for name, content in traced.to_files().items():
        file = folder / name
        if not file.is_file() or file.read_bytes() != content:
            write_file(file, content)


def write_result(run: Run, folder: Path) -> None:
    """Write `result.json`, the last file of a run, if this is the process that writes."""
    if not run.fabric.is_global_zero:
        return
    content = {
        "steps": run.usage.steps,
        "step": run.usage.steps,
        "tokens": run.usage.tokens,
        "train_flops": run.usage.flops,
        "train_seconds": run.usage.seconds,
        "compile_seconds": run.compile_seconds,
        **run.compute_mfu(run.usage.tokens / run.usage.seconds if run.usage.seconds else 0.0),
        "spikes": run.spike_filter.skipped,
        "final_loss": run.dev["loss"],
        "bits_per_byte": run.dev["bits_per_byte"],
        "checkpoint": str(folder.relative_to(run.config.out)),
    }
    atomic_write_json(run.config.out / "result.json", content)
