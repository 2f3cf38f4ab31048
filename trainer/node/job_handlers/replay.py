"""Replaying: a stretch of another node's training, once more here, and a comparison with what that node sent.

The training runs in the sandbox with the entry's code, and sees where the stretch begins and never where it ended. The
comparison is the site's own code, outside; it takes plain files out of the sandbox and follows no links.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trainer.node.checkpoint_sender import CHECKPOINTS_FOLDER, parse_step
from trainer.node.datasets import PYTHON_COMMAND, build_trusted_spec, ensure_dataset
from trainer.node.job_handlers.train import box, configure, lay_out_base, resume
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.protocol import Checkpoint, FileRef, ReplayOrder, ReplayResult
from trainer.sandbox import Mount, ResourceLimits, get_driver
from trainer.sandbox.safe_files import UnsafeFileError, list_folder, open_file, parse_json_object

if TYPE_CHECKING:
    from trainer.node.job import Job

DOING = "replaying"
WEIGHTS = "model.safetensors"
STATE = "state.json"
ANSWER_BYTES = 10_000
MODEL = 3
"""Exit code: the entry's own doing. Whatever else is wrong says nothing about it."""


def run(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, ReplayOrder)
    job.unpack()
    data = ensure_dataset(job, order.dataset)
    lay_out(job, order)
    configure(job, order.config, lay_out_base(job, order.base))
    told = job.workspace.root / "told.json"
    told.write_text(json.dumps(machines_word(job.workspace.run / "claimed" / STATE)))
    words = ("--until", str(order.claimed.step), "--recorded-state", str(told))
    process = job.run(job.place.sandbox, box(job, data, "trainer.training.replay", *words, beside=[Mount(told)]))
    code = process.poll()
    if process.limit_error is not None or code == MODEL:
        raise JobFailedError(
            process.limit_error or "The model failed while the stretch was replayed; the log says how.", "model"
        )
    if code != 0:
        raise JobFailedError(f"The replay could not run on this node (exit code {code}); the log says why.")
    return JobOutcome("done", result=compare(job, order).model_dump())


def lay_out(job: Job, order: ReplayOrder) -> None:
    """Put the start where the trainer looks for it, and both ends where only the comparison does."""
    work = job.workspace
    job.fetch_into(needed(order.claimed, WEIGHTS, STATE), work.run / "claimed")
    if order.start:
        job.fetch_into(needed(order.start, WEIGHTS), work.run / "start")
        resume(job, order.start)


def needed(checkpoint: Checkpoint, *wanted: str) -> list[FileRef]:
    return [file for file in checkpoint.files if file.path in wanted]


def machines_word(state: Path) -> dict[str, Any]:
    """Return what the machine that trained had a say in: what it charged each step, how it computed. No weights."""
    told = parse_json_object(state.read_bytes()) if state.is_file() else None
    clock, identity = (told or {}).get("clock"), (told or {}).get("identity")
    train = identity.get("train") if isinstance(identity, dict) else None
    whole = isinstance(clock, list) and all(type(step) is int and step >= 0 for step in clock)
    return {"clock": clock if whole else [], "train": train if isinstance(train, dict) else {}}


def compare(job: Job, order: ReplayOrder) -> ReplayResult:
    """Compare the last checkpoint that the replay wrote with the claimed one."""
    work = job.workspace
    steps = [step for name in list_folder(work.out, CHECKPOINTS_FOLDER) if (step := parse_step(name)) is not None]
    try:
        bring_out(job, max(steps, default=0), work.run / "replayed" / WEIGHTS)
        if order.start is None:
            bring_out(job, 0, work.run / "start" / WEIGHTS)
    except (OSError, UnsafeFileError) as error:
        raise JobFailedError("The replay left no weights to compare.", "model") from error
    words = [str(work.run / name / WEIGHTS) for name in ("start", "claimed", "replayed")]
    words += [] if order.start else ["--start-is-replayed"]
    answer = work.scratch / "answer.json"
    command = [*PYTHON_COMMAND, "-m", "trainer.scoring.compare_replay", *words]
    limits = ResourceLimits(**job.spec.limits.model_dump())
    process = job.run(get_driver("none"), build_trusted_spec(job, command, limits), output=answer)
    try:
        found = parse_json_object(answer.read_bytes()[: ANSWER_BYTES + 1], ANSWER_BYTES)
        return ReplayResult.model_validate({"step": max(steps), **(found or {})})
    except ValidationError as error:
        raise JobFailedError(f"The comparison could not work on this node (exit code {process.poll()}).") from error


def bring_out(job: Job, step: int, target: Path) -> None:
    """Copy the weights that the sandbox wrote for a step: a plain file, or nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        open_file(job.workspace.out, f"{CHECKPOINTS_FOLDER}/step-{step:08d}/{WEIGHTS}") as source,
        target.open("wb") as copy,
    ):
        shutil.copyfileobj(source, copy)
