"""Scoring: the site's scorer, from the pure release. It starts the model, with the entry's code, in the sandbox."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import ExitCode
from trainer.node.checkpoint_sender import CHECKPOINTS_FOLDER
from trainer.node.datasets import PYTHON_COMMAND, build_trusted_spec, ensure_dataset
from trainer.node.job_handlers.train import OPTIMIZER_FILE
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.protocol import ScoreOrder
from trainer.sandbox import get_driver
from trainer.sandbox.safe_files import parse_json_object, sanitize_line

if TYPE_CHECKING:
    from trainer.node.job import Job

ACTIVITY = "scoring"
FILES = ("items.jsonl.gz", "tokenizer.json")
"""Uploaded with the result: for comparing two runs item by item, and for publishing the weights."""
OUTPUT_BYTES = 4 << 20
SCORER_PROCESSES = 16  # of the scorer and its sandboxes, in addition to the model's


def run(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, ScoreOrder)
    job.unpack_source()
    dataset = ensure_dataset(job, order.dataset)
    prepare_run_folder(job, order, dataset)
    output = job.workspace.scratch / "output.json"
    limits = replace(job.limits, processes=job.limits.processes + SCORER_PROCESSES)
    spec = build_trusted_spec(job, build_command(job, order, dataset), limits)
    process = job.run_process(get_driver("none"), spec, output=output)
    if process.limit_error is not None:
        raise JobFailedError(f"The scoring was ended. {process.limit_error}", "model")
    return read_outcome(process.poll(), output)


def prepare_run_folder(job: Job, order: ScoreOrder, dataset: Path) -> None:
    """Create the run folder that the scorer reads."""
    run = job.workspace.run
    job.download(order.run, run / "run.json")
    if order.graph:
        job.download_all(order.graph.files, run / "graph")
    for folder in (run, job.workspace.out):
        shutil.copyfile(dataset / "tokenizer.json", folder / "tokenizer.json")
    files = [file for file in order.checkpoint.files if file.path != OPTIMIZER_FILE]
    job.download_all(files, run / CHECKPOINTS_FOLDER / f"step-{order.checkpoint.step:08d}")


def build_command(job: Job, order: ScoreOrder, dataset: Path) -> list[str]:
    command = [*PYTHON_COMMAND, "-m", "trainer.cli", "score", str(job.workspace.run), "--dataset", str(dataset)]
    command += ["--json", "--job", "--sandbox", job.context.sandbox.name, "--model-source", str(job.workspace.source)]
    command += ["--items", str(job.workspace.out / FILES[0])]
    if order.suite:
        command += ["--suite", ",".join(order.suite)]
    if order.suite_limit:
        command += ["--suite-limit", str(order.suite_limit)]
    if (folder := find_evaluation_data()) is not None:
        command += ["--eval-data", str(folder)]
    return command


def find_evaluation_data() -> Path | None:
    """Return this node's folder of benchmark files, if it has one."""
    data = os.environ.get("DAILYTRAIN_DATA")
    return folder if data and (folder := Path(data) / "eval").is_dir() else None


def read_outcome(code: int | None, output: Path) -> JobOutcome:
    result = parse_json_object(output.read_bytes()[: OUTPUT_BYTES + 1], OUTPUT_BYTES)
    if code == 0 and result is not None:
        return JobOutcome("done", result=result, files=FILES)
    if code == ExitCode.MODEL_ERROR and result is not None:
        reason = sanitize_line(result.get("failed")) or "The model did not pass the scorer's checks."
        return JobOutcome("failed", reason, "model")
    return JobOutcome("failed", f"The scorer could not work on this node (exit code {code}); the log says why.")
