"""Scoring: the site's scorer, from the pure release. It starts the model, with the entry's code, in the sandbox."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.node.checkpoint_sender import CHECKPOINTS_FOLDER
from trainer.node.datasets import PYTHON_COMMAND, build_trusted_spec, ensure_dataset
from trainer.node.job_handlers.train import OPTIMIZER
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.protocol import ScoreOrder
from trainer.sandbox import ResourceLimits, get_driver
from trainer.sandbox.safe_files import parse_json_object, sanitize_line

if TYPE_CHECKING:
    from trainer.node.job import Job

DOING = "scoring"
FILES = ("items.jsonl.gz", "tokenizer.json")
"""Stay with the job: what two runs are compared by, item by item, and what the weights are published with."""
ANSWER_BYTES = 4 << 20
MISBEHAVED = 3
OURS = 16
"""Processes of the scorer and of its sandboxes, beside the model's."""


def run(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, ScoreOrder)
    job.unpack()
    data = ensure_dataset(job, order.dataset)
    lay_out(job, order, data)
    answer = job.workspace.scratch / "answer.json"
    limits = ResourceLimits(**job.spec.limits.model_dump() | {"processes": job.spec.limits.processes + OURS})
    process = job.run(get_driver("none"), build_trusted_spec(job, command(job, order, data), limits), output=answer)
    if process.limit_error is not None:
        raise JobFailedError(f"The scoring was ended. {process.limit_error}", "model")
    return outcome(process.poll(), answer)


def lay_out(job: Job, order: ScoreOrder, data: Path) -> None:
    """Make the run folder that the scorer reads."""
    run = job.workspace.run
    job.fetch(order.run, run / "run.json")
    for folder in (run, job.workspace.out):
        shutil.copyfile(data / "tokenizer.json", folder / "tokenizer.json")
    files = [file for file in order.checkpoint.files if file.path != OPTIMIZER]
    job.fetch_into(files, run / CHECKPOINTS_FOLDER / f"step-{order.checkpoint.step:08d}")


def command(job: Job, order: ScoreOrder, data: Path) -> list[str]:
    words = [
        *PYTHON_COMMAND,
        "-m",
        "trainer.cli",
        "score",
        str(job.workspace.run),
        "--dataset",
        str(data),
        "--json",
        "--job",
    ]
    words += ["--sandbox", job.place.sandbox.name, "--model-source", str(job.workspace.source)]
    words += ["--items", str(job.workspace.out / FILES[0])]
    if order.suite:
        words += ["--suite", ",".join(order.suite)]
    if order.suite_limit:
        words += ["--suite-limit", str(order.suite_limit)]
    if (folder := evaluation_data()) is not None:
        words += ["--eval-data", str(folder)]
    return words


def evaluation_data() -> Path | None:
    """Return the folder of benchmark files on this node, if it has one."""
    data = os.environ.get("DAILYTRAIN_DATA")
    return folder if data and (folder := Path(data) / "eval").is_dir() else None


def outcome(code: int | None, answer: Path) -> JobOutcome:
    """Put the scorer's exit code and its answer together."""
    result = parse_json_object(answer.read_bytes()[: ANSWER_BYTES + 1], ANSWER_BYTES)
    if code == 0 and result is not None:
        return JobOutcome("done", result=result, files=FILES)
    if code == MISBEHAVED and result is not None:
        sentence = sanitize_line(result.get("failed"))
        return JobOutcome("failed", sentence or "The model did not pass the scorer's checks.", "model")
    return JobOutcome("failed", f"The scorer could not work on this node (exit code {code}); the log says why.")
