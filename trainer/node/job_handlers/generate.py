"""Text generation for a visitor: a run's model continues a prompt; the text is sent as it grows."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trainer.node.datasets import PYTHON_COMMAND, build_entry_environment, ensure_dataset
from trainer.node.job import Job
from trainer.node.outcome import JobOutcome, read_outcome
from trainer.node.senders import MetricsSender
from trainer.protocol import FileRef, GenerateOrder, encode_message
from trainer.protocol.files import OPTIMIZER_FILE, build_checkpoint_path
from trainer.sandbox import Mount, SandboxSpec
from trainer.sandbox.safe_files import parse_relative_path


def generate_text(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, GenerateOrder)
    job.unpack_source()
    dataset = ensure_dataset(job, order.dataset)
    checkpoint = prepare_run_folder(job, order, dataset)
    process = job.run_process(job.context.sandbox, build_spec(job, checkpoint), [MetricsSender(job)])
    return read_outcome(process, job.workspace.out, "The writing", is_graph=order.graph is not None)


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
