"""Replay: repeat stretches of another node's training here and compare the checkpoints with those that node sent.

Two neighboring stretches are trained from one start: the second one goes on from the replay's own state. The first
stretch of the run is always replayed, from the initial weights. The training runs the entry's graphs, or its code in
the sandbox. It sees where the first stretch begins and never where one ended. The comparison is a process of its own;
it takes regular files of the training's folder and follows no links.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.accounting.budget import Budget
from trainer.errors import ExitCode, ProcessEnd, find_fault
from trainer.node.checkpoint_sender import list_checkpoints, remove_folders
from trainer.node.datasets import PYTHON_COMMAND, build_trusted_spec, ensure_dataset
from trainer.node.job import Job
from trainer.node.job_handlers.train import (
    build_spec,
    choose_devices,
    download_base_weights,
    download_checkpoint,
    download_graph,
    write_config,
)
from trainer.node.outcome import JobFailedError, JobOutcome, explain_failure
from trainer.protocol import Checkpoint, ReplayCheck, ReplayOrder, ReplayResult
from trainer.protocol.files import (
    CHECKPOINTS_FOLDER,
    OPTIMIZER_FILE,
    STATE_FILE,
    build_checkpoint_path,
    is_weights_file,
)
from trainer.sandbox import Mount, get_driver
from trainer.sandbox.safe_files import UnsafeFileError, list_folder, open_file, parse_json_object, read_json_object

OUTPUT_BYTES = 10_000
UNPROVEN_DEVIATION = 1e9  # of a claim without the times that its steps took


def replay_run(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, ReplayOrder)
    job.unpack_source()
    dataset = ensure_dataset(job, order.dataset)
    config = order.config | choose_devices({**order.config, "devices": 1}, len(job.context.slot.gpus))
    write_config(job, config, download_base_weights(job, order.base), download_graph(job, order.graph))
    checks = []
    if order.first is not None:
        checks = replay_stretches(job, order, dataset, None, [order.first])
        remove_folders(job.workspace.out, CHECKPOINTS_FOLDER, [name for _, name in list_checkpoints(job.workspace.out)])
    ends = [end for end in (order.middle, order.claimed) if end is not None]
    checks += replay_stretches(job, order, dataset, order.start, ends)
    result = ReplayResult(
        step=checks[-1].step,
        exact=all(check.exact for check in checks),
        deviation=max(check.deviation for check in checks),
        checks=tuple(checks),
    )
    return JobOutcome("done", result=result.model_dump())


def replay_stretches(
    job: Job, order: ReplayOrder, dataset: Path, start: Checkpoint | None, ends: Sequence[Checkpoint]
) -> list[ReplayCheck]:
    """Train from a start to each of the ends that the budget allows, and compare the checkpoints there."""
    download_checkpoints(job, start, ends)
    state = read_recorded_state(get_claimed_folder(job, ends[-1].step) / STATE_FILE)
    if has_budget_in_seconds(order) and len(state["clock"]) < ends[-1].step:
        far = UNPROVEN_DEVIATION
        return [ReplayCheck(step=end.step, exact=False, deviation=far, state_deviation=far) for end in ends]
    recorded = job.workspace.root / "recorded_state.json"
    recorded.write_text(json.dumps(state))
    arguments = ("--until", *(str(end.step) for end in ends), "--recorded-state", str(recorded))
    spec = build_spec(job, dataset, 1, "trainer.training.replay", *arguments, extra_mounts=[Mount(recorded)])
    process = job.run_process(job.context.sandbox, spec)
    if process.limit_error is not None or process.poll() != ExitCode.OK:
        report = read_json_object(job.workspace.out, "failure.json", OUTPUT_BYTES)
        raise explain_failure(process, "The replay", order.graph is not None, report)
    return compare_with_claimed(job, start, ends, order.graph is not None)


def get_claimed_folder(job: Job, step: int) -> Path:
    return job.workspace.run / f"claimed-{step}"


def download_checkpoints(job: Job, start: Checkpoint | None, ends: Sequence[Checkpoint]) -> None:
    """Put the start where the trainer looks for it, and all checkpoints where only the comparison does."""
    for end in ends:
        job.download_all([file for file in end.files if is_compared(file.path)], get_claimed_folder(job, end.step))
    if start is not None:
        job.download_all([file for file in start.files if is_weights_file(file.path)], job.workspace.run / "start")
        download_checkpoint(job, start)


def is_compared(name: str) -> bool:
    """Return whether a file of a checkpoint holds weights, momenta or the position in the run."""
    return is_weights_file(name) or name in (OPTIMIZER_FILE, STATE_FILE)


def read_recorded_state(state: Path) -> dict[str, Any]:
    """Return what depends on the machine that trained: the cost of each step and its numerics. No weights."""
    recorded = parse_json_object(state.read_bytes()) if state.is_file() else None
    clock, identity = (recorded or {}).get("clock"), (recorded or {}).get("identity")
    train = identity.get("train") if isinstance(identity, dict) else None
    is_valid_clock = isinstance(clock, list) and all(type(step) is int and step >= 0 for step in clock)
    return {"clock": clock if is_valid_clock else [], "train": train if isinstance(train, dict) else {}}


def has_budget_in_seconds(order: ReplayOrder) -> bool:
    """Whether the schedule follows the times of the run's steps, which its checkpoints record."""
    budget = order.config.get("budget")
    return isinstance(budget, str) and Budget.parse(budget).kind == "seconds"


def compare_with_claimed(
    job: Job, start: Checkpoint | None, ends: Sequence[Checkpoint], is_graph: bool
) -> list[ReplayCheck]:
    """Compare each checkpoint that the replay wrote with the claimed one. The last one is where its budget ended."""
    work = job.workspace
    last_step = max((step for step, _ in list_checkpoints(work.out)), default=0)
    first = work.run / ("start" if start else "initial")
    checks = []
    for end in ends:
        step = min(end.step, last_step)
        replayed = work.run / f"replayed-{step}"
        try:
            copy_checkpoint(job, step, replayed)
            if start is None:
                copy_checkpoint(job, 0, first)
        except (OSError, UnsafeFileError) as error:
            fault = find_fault(ProcessEnd(ExitCode.OK), is_graph)
            raise JobFailedError("The replay left no weights to compare.", fault) from error
        arguments = [str(folder) for folder in (first, get_claimed_folder(job, end.step), replayed)]
        arguments += [] if start else ["--start-is-replayed"]
        checks.append(compare_checkpoints(job, step, arguments))
        if step < end.step:
            break
    return checks


def compare_checkpoints(job: Job, step: int, arguments: Sequence[str]) -> ReplayCheck:
    output = job.workspace.scratch / "output.json"
    spec = build_trusted_spec(job, [*PYTHON_COMMAND, "-m", "trainer.scoring.compare_replay", *arguments], job.limits)
    process = job.run_process(get_driver("none"), spec, output=output)
    try:
        found = parse_json_object(output.read_bytes()[: OUTPUT_BYTES + 1], OUTPUT_BYTES)
        return ReplayCheck.model_validate({"step": step, **(found or {})})
    except ValidationError as error:
        raise JobFailedError(f"The comparison could not work on this node (exit code {process.poll()}).") from error


def copy_checkpoint(job: Job, step: int, target: Path) -> None:
    """Copy the compared files of a step out of the sandbox; raise unless they are regular files."""
    folder = build_checkpoint_path(step)
    names = [name for name in list_folder(job.workspace.out, folder) if is_compared(name)]
    if not any(is_weights_file(name) for name in names):
        raise FileNotFoundError(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        with open_file(job.workspace.out, f"{folder}/{name}") as source, (target / name).open("wb") as copy:
            shutil.copyfileobj(source, copy)
