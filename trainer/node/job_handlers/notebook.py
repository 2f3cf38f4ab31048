"""One part of a notebook in the sandbox, with the previous part's files; the files it leaves are uploaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from trainer.errors import ExitCode
from trainer.node.client import build_file_ref
from trainer.node.datasets import PYTHON_COMMAND, build_entry_environment, ensure_dataset, mount_training_files
from trainer.node.fetch_proxy import serve_proxy
from trainer.node.job import Job
from trainer.node.outcome import JobFailedError, JobOutcome, explain_failure
from trainer.protocol import FileRef, NotebookOrder, NotebookResult
from trainer.sandbox import Mount, SandboxProcess, SandboxSpec
from trainer.sandbox.safe_files import UnsafeFileError, list_folder, open_file, read_json_object, sanitize_line

EXECUTED_FILE, MODEL_FOLDER = "executed.ipynb", "model"
RESULT_BYTES = 10_000
NOTEBOOKS_BYTES = 8 << 20  # all notebooks of an entry
START_SECONDS = 60.0  # in addition to the time of its cells
TIME_ADVICE = "Split it into several notebooks: each has this time anew, and finds in model/ what the last one left."
MAX_FILES = 500
MAX_DEPTH = 8
NAME_LENGTH = 200


def run_notebook(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, NotebookOrder)
    job.unpack_source("notebooks", NOTEBOOKS_BYTES)
    check_notebook(job.workspace.source, order.notebook)
    dataset = ensure_dataset(job, order.dataset) if order.dataset else None
    (job.workspace.out / MODEL_FOLDER).mkdir()
    job.download_all(order.model, job.workspace.out / MODEL_FOLDER)
    spec = build_spec(job, order, dataset)
    if not order.hosts:
        return read_outcome(job.run_process(job.context.sandbox, spec), job.workspace.out)
    with serve_proxy(order.hosts, job.limits.disk_bytes, job.log) as path:
        environment = {**spec.environment, "DAILYTRAIN_PROXY": str(path)}
        spec = replace(spec, environment=environment, mounts=[*spec.mounts, Mount(path.parent)])
        return read_outcome(job.run_process(job.context.sandbox, spec), job.workspace.out)


def check_notebook(source: Path, notebook: FileRef) -> None:
    """Raise `JobFailedError` unless the entry's files contain exactly the approved notebook."""
    name = sanitize_line(notebook.path)
    try:
        with open_file(source, notebook.path) as file:
            found = build_file_ref(notebook.path, file)
    except (OSError, UnsafeFileError):
        raise JobFailedError(f"The entry has no notebook {name}. Nothing was run.") from None
    if found != notebook:
        raise JobFailedError(f"{name} is not the notebook that was approved. Nothing was run.")


def build_spec(job: Job, order: NotebookOrder, dataset: Path | None) -> SandboxSpec:
    work = job.workspace
    command = [*PYTHON_COMMAND, "-m", "trainer.notebook", str(work.source / order.notebook.path)]
    environment = build_entry_environment(job) | {
        "DAILYTRAIN_PART": str(order.part),
        "DAILYTRAIN_PARTS": str(order.parts),
    }
    mounts = [Mount(work.source), Mount(work.out, writable=True)]
    if dataset is not None:
        environment["DAILYTRAIN_DATASET"] = str(dataset)
        mounts += mount_training_files(dataset)
    wall_seconds = min(job.limits.wall_seconds, order.seconds + START_SECONDS)
    return SandboxSpec(command, environment, mounts, work.out, replace(job.limits, wall_seconds=wall_seconds))


def read_outcome(process: SandboxProcess, out: Path) -> JobOutcome:
    """Return the outcome; the executed notebook is uploaded in any case. The time of its cells is part of its order."""
    if process.limit_error is not None:
        advice = f" {TIME_ADVICE}" if process.is_out_of_time else ""
        return build_failure(f"The notebook was ended. {process.limit_error}{advice}")
    if process.poll() == ExitCode.OK:
        return read_result(out)
    report = read_json_object(out, "failure.json", RESULT_BYTES)
    failure = explain_failure(process, "The notebook", is_graph=False, report=report)
    return JobOutcome("failed", str(failure), failure.fault, files=(EXECUTED_FILE,))


def build_failure(reason: str) -> JobOutcome:
    return JobOutcome("failed", reason, "model", files=(EXECUTED_FILE,))


def read_result(out: Path) -> JobOutcome:
    """Return the result. The files in `model/` are counted here, because the notebook's count is not trusted."""
    files = dict(iterate_files(out, MODEL_FOLDER))
    if len(files) > MAX_FILES:
        return build_failure(f"It left more than {MAX_FILES} files in {MODEL_FOLDER}/.")
    fields = read_json_object(out, "result.json", RESULT_BYTES) or {}
    counts = {"left": len(files), "left_bytes": sum(files.values())}
    try:
        result = NotebookResult.model_validate({**fields, **counts})
    except ValidationError:
        return build_failure("The notebook ended without a result.")
    return JobOutcome("done", result=result.model_dump(), files=(EXECUTED_FILE, *files))


def iterate_files(out: Path, folder: str, depth: int = MAX_DEPTH) -> Iterator[tuple[str, int]]:
    """Yield path and size of the regular files below a folder. Links are not followed."""
    for name in list_folder(out, folder) if depth else ():
        path = f"{folder}/{name}"
        if len(path) > NAME_LENGTH:
            continue
        try:
            with open_file(out, path) as file:
                yield path, file.seek(0, 2)
        except (OSError, UnsafeFileError):
            yield from iterate_files(out, path, depth - 1)
