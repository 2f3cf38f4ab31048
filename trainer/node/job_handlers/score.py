"""Scoring: `dailytrain score` with a run's graphs, or with the Python of its architecture.

Graphs and our own architectures run as trusted code from the release. The Python of an entry runs in the sandbox, which
contains the held-out text and never the secret that draws it: only numbers leave it, and they are advisory.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.errors import ExitCode
from trainer.node.datasets import PYTHON_COMMAND, build_entry_environment, build_trusted_spec, ensure_dataset
from trainer.node.job import Job
from trainer.node.outcome import JobFailedError, JobOutcome, explain_failure
from trainer.protocol import FileRef, ScoreOrder
from trainer.protocol.files import OPTIMIZER_FILE, build_checkpoint_path
from trainer.sandbox import Mount, SandboxProcess, SandboxSpec, get_driver
from trainer.sandbox.safe_files import parse_json_object, parse_relative_path, sanitize_line

TOKENIZER_FILE = "tokenizer.json"
ITEMS_FILE = "items.jsonl.gz"
TEXT_FILE = "test.jsonl"  # what the order's secret draws
FILES = (ITEMS_FILE, "losses.npy", TOKENIZER_FILE)
"""Uploaded with the result: for comparing two runs item by item, as a reference, and for publishing the weights."""
OUTPUT_BYTES = 4 << 20
TAIL_LENGTH = 4096
COMMAND_NAME = re.compile(r"^dailytrain [a-z]+: ")


def score_run(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, ScoreOrder)
    job.unpack_source()
    dataset = ensure_dataset(job, order.dataset)
    prepare_run_folder(job, order, dataset)
    text = draw_test_text(job, order, dataset) if order.test_secret else None
    source = ["--corpus", f"files:{text}"] if text else ["--dataset", str(dataset)]
    command = [*PYTHON_COMMAND, "-m", "trainer.cli", "score", str(job.workspace.run), *source]
    command += ["--json", "--device", "cuda" if job.context.slot.gpus else "auto"]
    if order.limit_tokens:
        command += ["--limit-tokens", str(order.limit_tokens)]
    is_trusted = order.graph is not None or job.spec.entry is None
    return score_trusted_code(job, order, command) if is_trusted else score_entry_code(job, text or dataset, command)


def draw_test_text(job: Job, order: ScoreOrder, dataset: Path) -> Path:
    """Write the text that the order's secret draws; return the file. No process of an entry sees the secret."""
    assert order.test_secret is not None
    secret, text = job.workspace.root / "secret", job.workspace.root / TEXT_FILE
    secret.write_text(order.test_secret)
    command = [*PYTHON_COMMAND, "-m", "trainer.cli", "draw", str(dataset), "--secret", str(secret), "--out", str(text)]
    if order.limit_tokens:
        command += ["--limit-tokens", str(order.limit_tokens)]
    output = job.workspace.scratch / "drawn.json"
    process = job.run_process(get_driver("none"), build_trusted_spec(job, command, job.limits), output=output)
    secret.unlink()
    if process.poll() != 0:
        raise JobFailedError("This node could not draw the test text; its log says why.")
    return text


def score_trusted_code(job: Job, order: ScoreOrder, command: list[str]) -> JobOutcome:
    """Score with the site's release: no code of an entry runs."""
    output = job.workspace.scratch / "output.json"
    spec = build_trusted_spec(job, command + build_trusted_flags(job, order), job.limits)
    process = job.run_process(get_driver("none"), spec, output=output)
    return read_outcome(process, read_output(output), is_graph=order.graph is not None, last_line=read_last_line(job))


def read_outcome(
    process: SandboxProcess, result: dict[str, Any] | None, is_graph: bool, last_line: str = ""
) -> JobOutcome:
    """Return the outcome. `is_graph`: no code of the entry ran; `last_line`: that the processes have written."""
    if process.limit_error is None and process.poll() == ExitCode.OK and result is not None:
        return JobOutcome("done", result=result, files=FILES)
    report = result or {}
    report = {"reason": report.get("failed") or last_line, "fault": report.get("fault")}
    raise explain_failure(process, "The scoring", is_graph, report)


def build_trusted_flags(job: Job, order: ScoreOrder) -> list[str]:
    flags = ["--items", str(job.workspace.out / ITEMS_FILE)]
    if order.reference:
        reference = job.workspace.scratch / "reference.npy"
        job.download(order.reference, reference)
        flags += ["--reference", str(reference)]
    if order.suite:
        flags += ["--suite", ",".join(order.suite)]
    if order.suite_limit:
        flags += ["--suite-limit", str(order.suite_limit)]
    if order.suite_files:
        flags += ["--eval-data", str(collect_evaluation_data(job, order.suite_files))]
    return flags


def score_entry_code(job: Job, text: Path, command: list[str]) -> JobOutcome:
    """Score with the entry's Python in the sandbox, without network. Its log is dropped: it could hold the text."""
    work = job.workspace
    mounts = [Mount(work.source), Mount(work.run), Mount(text), Mount(work.scratch, writable=True)]
    environment = build_entry_environment(job) | {"TMPDIR": str(work.scratch)}
    silent = ["/bin/sh", "-c", 'exec "$@" 2>/dev/null', "sh", *command]
    output = work.root / "output.json"
    spec = SandboxSpec(silent, environment, mounts, work.scratch, job.limits)
    process = job.run_process(job.context.sandbox, spec, output=output)
    result = read_output(output)
    if process.limit_error is not None or process.poll() != ExitCode.OK or result is None:
        failure = explain_failure(process, "The scoring", is_graph=False)
        reason = str(failure) if process.limit_error is not None else "The entry's Python could not be scored."
        raise JobFailedError(reason, failure.fault)
    numbers = {name: value for name, value in result.items() if isinstance(value, int | float)}
    return JobOutcome("done", result=numbers, files=(TOKENIZER_FILE,))


def prepare_run_folder(job: Job, order: ScoreOrder, dataset: Path) -> None:
    """Create the run folder that the scorer reads."""
    run = job.workspace.run
    job.download(order.run, run / "run.json")
    if order.graph:
        job.download_all(order.graph.files, run / "graph")
    for folder in (run, job.workspace.out):
        shutil.copyfile(dataset / TOKENIZER_FILE, folder / TOKENIZER_FILE)
    files = [file for file in order.checkpoint.files if file.path != OPTIMIZER_FILE]
    job.download_all(files, run / build_checkpoint_path(order.checkpoint.step))


def collect_evaluation_data(job: Job, files: Sequence[FileRef]) -> Path:
    """Return a folder with the season's evaluation data. The node downloads each file once."""
    folder = job.workspace.scratch / "evaluation"
    for file in files:
        target = folder / parse_relative_path(file.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(job.download_to_cache(job.context.evaluation_data, file), target)
    return folder


def read_output(output: Path) -> dict[str, Any] | None:
    with output.open("rb") as file:
        return parse_json_object(file.read(OUTPUT_BYTES + 1), OUTPUT_BYTES)


def read_last_line(job: Job) -> str:
    """Return the end of what the processes wrote, without the name of the command: an error, or the exception."""
    lines = job.workspace.output.read_text(errors="replace")[-TAIL_LENGTH:].splitlines()
    last = next((line for text in reversed(lines) if (line := sanitize_line(text))), "")
    return COMMAND_NAME.sub("", last)
