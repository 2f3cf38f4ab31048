"""Text generation for a visitor: a run's model continues a prompt; the text is sent as it grows."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trainer.errors import CRASH_SIGNALS, ExitCode
from trainer.node.datasets import PYTHON_COMMAND, build_entry_environment, ensure_dataset
from trainer.node.job import Job
from trainer.node.metrics_sender import MetricsSender
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.protocol import Cause, FileRef, GenerateOrder, encode_message
from trainer.protocol.files import OPTIMIZER_FILE, build_checkpoint_path
from trainer.sandbox import Mount, SandboxProcess, SandboxSpec
from trainer.sandbox.safe_files import parse_relative_path, read_json_object, sanitize_line

ACTIVITY = "writing for a visitor"
RESULT_BYTES = 10_000


def run(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, GenerateOrder)
    job.unpack_source()
    dataset = ensure_dataset(job, order.dataset)
    checkpoint = prepare_run_folder(job, order, dataset)
    process = job.run_process(job.context.sandbox, build_spec(job, checkpoint), [MetricsSender(job)])
    return read_outcome(process, job.workspace.out, is_graph=order.graph is not None)


def prepare_run_folder(job: Job, order: GenerateOrder, dataset: Path) -> Path:
    """Create the run folder that the model is loaded from; return the folder of its checkpoint."""
    folder = job.workspace.run
    job.download(order.run, folder / "run.json")
    shutil.copyfile(dataset / "tokenizer.json", folder / "tokenizer.json")
    if order.graph:
        job.download_all(order.graph.files, folder / "graph")
    (folder / "order.json").write_text(encode_message(order))
    checkpoint = folder / build_checkpoint_path(order.checkpoint.step)
    for file in order.checkpoint.files:
        if file.path != OPTIMIZER_FILE:
            link_weights(job, file, checkpoint)
    return checkpoint


def link_weights(job: Job, file: FileRef, folder: Path) -> None:
    """Hard-link a file from the cache of weights, which downloads it once and verifies its hash each time."""
    target = folder / parse_relative_path(file.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(job.download_to_cache(job.context.weights, file), target)


def build_spec(job: Job, checkpoint: Path) -> SandboxSpec:
    work = job.workspace
    command = [*PYTHON_COMMAND, "-m", "trainer.inference.generate", str(work.run), "--checkpoint", str(checkpoint)]
    mounts = [Mount(work.source), Mount(work.run), Mount(work.out, writable=True)]
    return SandboxSpec([*command, "--out", str(work.out)], build_entry_environment(job), mounts, work.out, job.limits)


def read_outcome(process: SandboxProcess, out: Path, is_graph: bool) -> JobOutcome:
    """Return the outcome. `is_graph`: no code of the entry ran."""
    code = process.poll()
    cause: Cause = "infrastructure" if is_graph else "model"
    if process.limit_error is not None:
        return JobOutcome("failed", f"The model was ended while it wrote. {process.limit_error}", cause)
    if code == ExitCode.MODEL_ERROR:
        failure = read_json_object(out, "failure.json", RESULT_BYTES) or {}
        reason = sanitize_line(failure.get("reason")) or "The model failed while it wrote."
        return JobOutcome("failed", reason, "model")
    if code in CRASH_SIGNALS:
        return JobOutcome("failed", f"The model's process crashed with {CRASH_SIGNALS[code]}.", cause)
    if code != 0:
        failure = read_json_object(out, "failure.json", RESULT_BYTES) or {}
        if is_graph and failure.get("fault") == "checkpoint":
            raise JobFailedError(sanitize_line(failure.get("reason")), fault="order")
        raise JobFailedError(f"The model could not run on this node (exit code {code}); the log says why.")
    return JobOutcome("done", result=read_json_object(out, "result.json", RESULT_BYTES) or {})
