"""Writing for a visitor: a run's model goes on with a prompt, in the sandbox; its text is sent while it is written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.node.checkpoints import FOLDER
from trainer.node.datasets import PYTHON, dataset
from trainer.node.job_handlers.train import CRASHES, OPTIMIZER
from trainer.node.metrics import MetricsLoop
from trainer.node.outcome import Failed, Outcome
from trainer.protocol import FileRef, GenerateOrder, encode_message
from trainer.sandbox import Box, Limits, Mount, Process
from trainer.sandbox.safe_files import UnsafeFileError, parse_relative_path, read_json_object, sanitize_line

if TYPE_CHECKING:
    from trainer.node.job import Job

DOING = "writing for a visitor"
RESULT_BYTES = 10_000
MODEL = 3
"""Exit code: the model's own doing."""


def run(job: Job) -> Outcome:
    order = job.spec.order
    assert isinstance(order, GenerateOrder)
    job.unpack()
    data = dataset(job, order.dataset)
    checkpoint = lay_out(job, order, data)
    loop = MetricsLoop(job.client, job.lease, job.workspace.out, job.wishes)
    process = job.run(job.place.sandbox, box(job, checkpoint), (loop,))
    return outcome(process, job.workspace.out)


def lay_out(job: Job, order: GenerateOrder, data: Path) -> Path:
    """Make the run folder that is read from; return the folder of its checkpoint."""
    folder = job.workspace.run
    job.fetch(order.run, folder / "run.json")
    shutil.copyfile(data / "tokenizer.json", folder / "tokenizer.json")
    (folder / "order.json").write_text(encode_message(order))
    checkpoint = folder / FOLDER / f"step-{order.checkpoint.step:08d}"
    for file in order.checkpoint.files:
        if file.path != OPTIMIZER:
            link(job, file, checkpoint)
    return checkpoint


def link(job: Job, file: FileRef, folder: Path) -> None:
    """Let a file appear in a folder: fetched once, it stays on this node, and is compared with its hash each time."""
    try:
        target = folder / parse_relative_path(file.path)
    except UnsafeFileError as error:
        raise Failed(f"{error} Nothing was run.") from error
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(job.place.weights.get(file, job.fetch), target)


def box(job: Job, checkpoint: Path) -> Box:
    work = job.workspace
    command = [*PYTHON, "-m", "trainer.inference.generate", str(work.run), "--checkpoint", str(checkpoint)]
    environment = job.place.lane.environment() | {
        "PYTHONPATH": str(work.source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
    }
    mounts = [Mount(work.source), Mount(work.run), Mount(work.out, writable=True)]
    limits = Limits(**job.spec.limits.model_dump())
    return Box([*command, "--out", str(work.out)], environment, mounts, work.out, limits)


def outcome(process: Process, out: Path) -> Outcome:
    """Put the exit code and what lies in the folder together."""
    code = process.poll()
    if process.exceeded is not None:
        return Outcome("failed", f"The model was ended while it wrote. {process.exceeded}", "model")
    if code == MODEL:
        told = read_json_object(out, "failure.json", RESULT_BYTES) or {}
        return Outcome("failed", sanitize_line(told.get("reason")) or "The model failed while it wrote.", "model")
    if code in CRASHES:
        return Outcome("failed", f"The model's process crashed with {CRASHES[code]}.", "model")
    if code != 0:
        raise Failed(f"The model could not be asked on this node (exit code {code}); the log says why.")
    return Outcome("done", result=read_json_object(out, "result.json", RESULT_BYTES) or {})
