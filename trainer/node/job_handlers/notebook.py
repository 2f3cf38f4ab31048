"""A notebook: one part of one, in the sandbox, with what the part before left; what it leaves is sent back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from trainer.node.client import build_file_ref
from trainer.node.datasets import PYTHON_COMMAND, ensure_dataset
from trainer.node.job_handlers.train import CRASHES, VISIBLE
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.protocol import FileRef, NotebookOrder, NotebookResult
from trainer.sandbox import Mount, ResourceLimits, SandboxProcess, SandboxSpec
from trainer.sandbox.safe_files import UnsafeFileError, list_folder, open_file, read_json_object, sanitize_line

if TYPE_CHECKING:
    from trainer.node.job import Job

DOING = "running a notebook"
EXECUTED, MODEL = "executed.ipynb", "model"
RESULT_BYTES = 10_000
NOTEBOOKS_BYTES = 8 << 20
"""All notebooks of an entry."""
STARTING_SECONDS = 60.0
"""Beside the time of its cells."""
MOST_FILES = 500
DEEPEST = 8
NAME_LENGTH = 200
BROKE = 3
"""Exit code: the notebook's own doing."""


def run(job: Job) -> JobOutcome:
    order = job.spec.order
    assert isinstance(order, NotebookOrder)
    job.unpack("notebooks", NOTEBOOKS_BYTES)
    check(job.workspace.source, order.notebook)
    data = ensure_dataset(job, order.dataset) if order.dataset else None
    (job.workspace.out / MODEL).mkdir()
    job.fetch_into(order.model, job.workspace.out / MODEL)
    process = job.run(job.place.sandbox, box(job, order, data))
    return outcome(process, job.workspace.out)


def check(source: Path, notebook: FileRef) -> None:
    """Raise `Failed` unless the entry's files hold exactly the notebook that was approved."""
    try:
        with open_file(source, notebook.path) as file:
            found = build_file_ref(notebook.path, file)
    except (OSError, UnsafeFileError):
        raise JobFailedError(f"The entry has no notebook {sanitize_line(notebook.path)}. Nothing was run.") from None
    if found != notebook:
        raise JobFailedError(f"{sanitize_line(notebook.path)} is another notebook than was approved. Nothing was run.")


def box(job: Job, order: NotebookOrder, data: Path | None) -> SandboxSpec:
    work = job.workspace
    notebook = work.source / order.notebook.path
    environment = job.place.lane.environment() | {
        "PYTHONPATH": str(work.source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "DAILYTRAIN_PART": str(order.part),
        "DAILYTRAIN_PARTS": str(order.parts),
    }
    mounts = [Mount(work.source), Mount(work.out, writable=True)]
    if data is not None:
        environment["DAILYTRAIN_DATASET"] = str(data)
        mounts += [Mount(data / name) for name in VISIBLE if (data / name).exists()]
    limits = ResourceLimits(**job.spec.limits.model_dump())
    limits = replace(limits, wall_seconds=min(limits.wall_seconds, order.seconds + STARTING_SECONDS))
    return SandboxSpec(
        [*PYTHON_COMMAND, "-m", "trainer.notebook", str(notebook)], environment, mounts, work.out, limits
    )


def outcome(process: SandboxProcess, out: Path) -> JobOutcome:
    """Put the exit code and what lies in the folder together; what was executed is kept in any case."""
    code = process.poll()
    if process.limit_error is not None:
        return JobOutcome("failed", f"The notebook was ended. {process.limit_error}", "model", files=(EXECUTED,))
    told = read_json_object(out, "failure.json", RESULT_BYTES) or {}
    if code == BROKE:
        reason = sanitize_line(told.get("reason")) or "The notebook went wrong; the log says how."
        return JobOutcome("failed", reason, "model", files=(EXECUTED,))
    if code in CRASHES:
        return JobOutcome("failed", f"The notebook's process crashed with {CRASHES[code]}.", "model", files=(EXECUTED,))
    if code != 0:
        raise JobFailedError(f"The notebook could not run on this node (exit code {code}); the log says why.")
    return arrived(out)


def arrived(out: Path) -> JobOutcome:
    """Return the result, with what lies in `model/`, counted here: the notebook has no say in that."""
    files = dict(left(out))
    if len(files) > MOST_FILES:
        return JobOutcome("failed", f"It left more than {MOST_FILES} files in {MODEL}/.", "model", files=(EXECUTED,))
    told = read_json_object(out, "result.json", RESULT_BYTES) or {}
    counted = {"left": len(files), "left_bytes": sum(files.values())}
    try:
        result = NotebookResult.model_validate({**told, **counted})
    except ValidationError:
        return JobOutcome("failed", "The notebook ended without a result.", "model", files=(EXECUTED,))
    return JobOutcome("done", result=result.model_dump(), files=(EXECUTED, *files))


def left(out: Path, folder: str = MODEL, depth: int = DEEPEST) -> Iterator[tuple[str, int]]:
    """Yield the plain files below a folder that a notebook wrote, with their sizes. Links are not followed."""
    for name in list_folder(out, folder) if depth else ():
        path = f"{folder}/{name}"
        if len(path) > NAME_LENGTH:
            continue
        try:
            with open_file(out, path) as file:
                yield path, file.seek(0, 2)
        except (OSError, UnsafeFileError):
            yield from left(out, path, depth - 1)
