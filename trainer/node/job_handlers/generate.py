"""Writing for a visitor: a run's model goes on with a prompt, in the sandbox; its text is sent while it is written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.node.checkpoint_sender import CHECKPOINTS_FOLDER
from trainer.node.datasets import PYTHON_COMMAND, ensure_dataset
from trainer.node.job_handlers.train import CRASHES, OPTIMIZER
from trainer.node.metrics_sender import MetricsSender
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.protocol import FileRef, GenerateOrder, encode_message
from trainer.sandbox import Mount, ResourceLimits, SandboxProcess, SandboxSpec
from trainer.sandbox.safe_files import UnsafeFileError, parse_relative_path, read_json_object, sanitize_line

if TYPE_CHECKING:
    from trainer.node.job import Job

DOING = "writing for a visitor"
RESULT_BYTES = 10_000
MODEL = 3
"""Exit code: the model's own doing."""


def run(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, GenerateOrder)
    job.unpack()
    data = ensure_dataset(job, order.dataset)
    checkpoint = lay_out(job, order, data)
    loop = MetricsSender(job.client, job.lease, job.workspace.out, job.wishes)
    process = job.run(job.place.sandbox, box(job, checkpoint), (loop,))
    return outcome(process, job.workspace.out)


def lay_out(job: Job, order: GenerateOrder, data: Path) -> Path:
    """Make the run folder that is read from; return the folder of its checkpoint."""
    folder = job.workspace.run
    job.fetch(order.run, folder / "run.json")
    shutil.copyfile(data / "tokenizer.json", folder / "tokenizer.json")
    (folder / "order.json").write_text(encode_message(order))
    checkpoint = folder / CHECKPOINTS_FOLDER / f"step-{order.checkpoint.step:08d}"
    for file in order.checkpoint.files:
        if file.path != OPTIMIZER:
            link(job, file, checkpoint)
    return checkpoint


def link(job: Job, file: FileRef, folder: Path) -> None:
    """Let a file appear in a folder: fetched once, it stays on this node, and is compared with its hash each time."""
    try:
        target = folder / parse_relative_path(file.path)
    except UnsafeFileError as error:
        raise JobFailedError(f"{error} Nothing was run.") from error
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(job.place.weights.get(file, job.fetch), target)


def box(job: Job, checkpoint: Path) -> SandboxSpec:
    work = job.workspace
    command = [*PYTHON_COMMAND, "-m", "trainer.inference.generate", str(work.run), "--checkpoint", str(checkpoint)]
    environment = job.place.lane.environment() | {
        "PYTHONPATH": str(work.source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
    }
    mounts = [Mount(work.source), Mount(work.run), Mount(work.out, writable=True)]
    limits = ResourceLimits(**job.spec.limits.model_dump())
    return SandboxSpec([*command, "--out", str(work.out)], environment, mounts, work.out, limits)


def outcome(process: SandboxProcess, out: Path) -> JobOutcome:
    """Put the exit code and what lies in the folder together."""
    code = process.poll()
    if process.limit_error is not None:
        return JobOutcome("failed", f"The model was ended while it wrote. {process.limit_error}", "model")
    if code == MODEL:
        told = read_json_object(out, "failure.json", RESULT_BYTES) or {}
        return JobOutcome("failed", sanitize_line(told.get("reason")) or "The model failed while it wrote.", "model")
    if code in CRASHES:
        return JobOutcome("failed", f"The model's process crashed with {CRASHES[code]}.", "model")
    if code != 0:
        raise JobFailedError(f"The model could not be asked on this node (exit code {code}); the log says why.")
    return JobOutcome("done", result=read_json_object(out, "result.json", RESULT_BYTES) or {})
