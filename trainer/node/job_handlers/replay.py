"""Replay: repeat a stretch of another node's training here and compare the result with what that node sent.

The training runs the entry's graphs, or its code in the sandbox. It sees where the stretch begins and never where it
ended. The comparison is a process of its own; it takes regular files of the training's folder and follows no links.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.accounting.budget import Budget
from trainer.errors import ExitCode, ProcessEnd, find_fault
from trainer.node.checkpoint_sender import list_checkpoints
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
from trainer.protocol import Checkpoint, FileRef, ReplayOrder, ReplayResult
from trainer.protocol.files import STATE_FILE, build_checkpoint_path, is_weights_file
from trainer.sandbox import Mount, get_driver
from trainer.sandbox.safe_files import UnsafeFileError, list_folder, open_file, parse_json_object, read_json_object

ACTIVITY = "replaying"
OUTPUT_BYTES = 10_000
UNPROVEN_DEVIATION = 1e9  # of a claim without the times that its steps took


def run(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, ReplayOrder)
    job.unpack_source()
    dataset = ensure_dataset(job, order.dataset)
    download_both_ends(job, order)
    state = read_recorded_state(job.workspace.run / "claimed" / STATE_FILE)
    if has_budget_in_seconds(order) and len(state["clock"]) < order.claimed.step:
        result = ReplayResult(step=order.claimed.step, exact=False, deviation=UNPROVEN_DEVIATION)
        return JobOutcome("done", result=result.model_dump())
    config = order.config | choose_devices({**order.config, "devices": 1}, len(job.context.slot.gpus))
    write_config(job, config, download_base_weights(job, order.base), download_graph(job, order.graph))
    recorded = job.workspace.root / "recorded_state.json"
    recorded.write_text(json.dumps(state))
    arguments = ("--until", str(order.claimed.step), "--recorded-state", str(recorded))
    spec = build_spec(job, dataset, 1, "trainer.training.replay", *arguments, extra_mounts=[Mount(recorded)])
    process = job.run_process(job.context.sandbox, spec)
    if process.limit_error is not None or process.poll() != ExitCode.OK:
        report = read_json_object(job.workspace.out, "failure.json", OUTPUT_BYTES)
        raise explain_failure(process, "The replay", order.graph is not None, report)
    return JobOutcome("done", result=compare_weights(job, order).model_dump())


def download_both_ends(job: Job, order: ReplayOrder) -> None:
    """Put the start where the trainer looks for it, and both ends where only the comparison does."""
    work = job.workspace
    state = [file for file in order.claimed.files if file.path == STATE_FILE]
    job.download_all([*select_weights(order.claimed), *state], work.run / "claimed")
    if order.start:
        job.download_all(select_weights(order.start), work.run / "start")
        download_checkpoint(job, order.start)


def select_weights(checkpoint: Checkpoint) -> list[FileRef]:
    return [file for file in checkpoint.files if is_weights_file(file.path)]


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


def compare_weights(job: Job, order: ReplayOrder) -> ReplayResult:
    """Compare the last checkpoint of the replay with the claimed one."""
    work = job.workspace
    last_step = max((step for step, _ in list_checkpoints(work.out)), default=0)
    try:
        copy_weights(job, last_step, work.run / "replayed")
        if order.start is None:
            copy_weights(job, 0, work.run / "start")
    except (OSError, UnsafeFileError) as error:
        fault = find_fault(ProcessEnd(ExitCode.OK), is_graph=order.graph is not None)
        raise JobFailedError("The replay left no weights to compare.", fault) from error
    arguments = [str(work.run / name) for name in ("start", "claimed", "replayed")]
    arguments += [] if order.start else ["--start-is-replayed"]
    output = work.scratch / "output.json"
    spec = build_trusted_spec(job, [*PYTHON_COMMAND, "-m", "trainer.scoring.compare_replay", *arguments], job.limits)
    process = job.run_process(get_driver("none"), spec, output=output)
    try:
        found = parse_json_object(output.read_bytes()[: OUTPUT_BYTES + 1], OUTPUT_BYTES)
        return ReplayResult.model_validate({"step": last_step, **(found or {})})
    except ValidationError as error:
        raise JobFailedError(f"The comparison could not work on this node (exit code {process.poll()}).") from error


def copy_weights(job: Job, step: int, target: Path) -> None:
    """Copy the weights of a step out of the sandbox; raise unless they are regular files."""
    folder = build_checkpoint_path(step)
    names = [name for name in list_folder(job.workspace.out, folder) if is_weights_file(name)]
    if not names:
        raise FileNotFoundError(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        with open_file(job.workspace.out, f"{folder}/{name}") as source, (target / name).open("wb") as copy:
            shutil.copyfileobj(source, copy)
