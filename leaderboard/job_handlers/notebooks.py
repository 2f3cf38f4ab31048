"""Jobs of kind `notebook`: community notebooks whose parts run one after the other, each as a job in the sandbox.

The files that a part leaves in `model/` are stored with its job, passed to the next part, and offered for download. A
notebook has no score: its run is finished when its last cell was run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.utils import timezone
from pydantic import ValidationError

from leaderboard import run_jobs
from leaderboard.formatting import duration
from leaderboard.job_handlers import train
from leaderboard.models import Entry, NotebookPart, Run
from leaderboard.run_states import RunEvent, apply_event
from leaderboard.sanitize import sanitize_text
from leaderboard.submissions.notebook_cells import MAX_BYTES, Cell, NotebookError, parse_cells
from scheduler import storage
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import SITE_ACTOR, Job, JobFile, Lease
from trainer import protocol
from trainer.accounting.budget import Budget

EXECUTED = "executed.ipynb"
MODEL = "model/"


def get_notebook_files(entry: Entry) -> list[protocol.FileRef]:
    return [protocol.FileRef.model_validate(part) for part in entry.notebooks]


def get_part(job: Job) -> NotebookPart:
    """Return the part that a job runs. The row of a run's first part is created here, later ones when queued."""
    part = NotebookPart.objects.select_related("run__entry", "run__track__season").filter(job=job).first()
    if part is not None:
        return part
    run = Run.objects.select_related("entry", "track__season").get(job=job)
    return NotebookPart.objects.create(run=run, number=run.parts.count() + 1, job=job)


def get_part_seconds(run: Run) -> float:
    """Return the time limit of each part: the run's budget if that is a time, else the time its track expects."""
    budget = Budget.parse(run.budget)
    return budget.amount if budget.kind == "seconds" else run.expected_seconds


def list_model_files(job: Job) -> list[protocol.FileRef]:
    """Return the files that a part left in `model/`, with paths relative to it."""
    files = JobFile.objects.select_related("blob").filter(job=job, path__startswith=MODEL).order_by("path")
    return [storage.build_file_reference(file.blob, file.path.removeprefix(MODEL)) for file in files]


class NotebookHandler(JobKind):
    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.NotebookOrder:
        part = get_part(job)
        parts = get_notebook_files(part.run.entry)
        before = part.run.parts.filter(number=part.number - 1).first()
        season = part.run.season
        return protocol.NotebookOrder(
            notebook=parts[part.number - 1],
            dataset=season.dataset("train", "dev") if season.is_prepared else None,
            part=part.number,
            parts=len(parts),
            seconds=get_part_seconds(part.run),
            model=tuple(list_model_files(before.job)) if before else (),
            hosts=tuple(part.run.track.notebook_hosts) or None,
        )

    def handle_lease(self, job: Job, lease: Lease) -> None:
        part = get_part(job)
        train.mark_run_started(part.run, lease, f"{describe_part(part)} runs on {lease.node.name}.")

    def handle_requeue(self, job: Job, reason: str) -> None:
        part = get_part(job)
        train.mark_run_paused(part.run, job, reason, f"{describe_part(part)} starts over")

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        """Queue the next part; after the last one finish the run."""
        part = get_part(job)
        try:
            reported = protocol.NotebookResult.model_validate(result)
        except ValidationError:
            train.mark_run_failed(part.run, "infrastructure", "The node's answer about the notebook is invalid.")
            return
        count = len(get_notebook_files(part.run.entry))
        if part.number < count:
            queue_next_part(part, count)
        else:
            finish_run(part, reported)

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        train.mark_run_failed(get_part(job).run, cause, reason)

    def handle_cancellation(self, job: Job, reason: str) -> None:
        train.mark_run_cancelled(get_part(job).run, reason)

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        summaries = {}
        for part in NotebookPart.objects.filter(job__in=jobs).select_related("run__entry"):
            title = f"Notebook {part.run.entry.title}{format_part_number(part)}"
            summaries[part.job_id] = JobSummary(title, part.run.get_absolute_url(), part.run.state)
        return summaries


def describe_part(part: NotebookPart) -> str:
    return format_part_number(part).removeprefix(", ").capitalize() or "The notebook"


def format_part_number(part: NotebookPart) -> str:
    count = len(part.run.entry.notebooks)
    return f", part {part.number} of {count}" if count > 1 else ""


def queue_next_part(part: NotebookPart, count: int) -> None:
    """Queue the next part, on any node, with the queue time of this one."""
    run = part.run
    next_job = Job(**run_jobs.build_train_job(run, part.job.release), queued_at=part.job.queued_at)
    message = f"{describe_part(part)} is done; part {part.number + 1} is queued."
    fields = {"job": next_job, "fraction": part.number / count}
    apply_event(run, RunEvent.CONTINUE, actor=SITE_ACTOR, message=message, **fields)
    NotebookPart.objects.create(run=run, number=part.number + 1, job=next_job)


def finish_run(part: NotebookPart, found: protocol.NotebookResult) -> None:
    files = f"; it left {found.left} {'file' if found.left == 1 else 'files'} in {MODEL}" if found.left else ""
    message = f"The notebook has run to its last cell, in {duration(found.seconds)}{files}."
    fields = {"trained_at": timezone.now(), "fraction": 1.0}
    apply_event(part.run, RunEvent.COMPLETE, actor=SITE_ACTOR, message=message, **fields)


# --- for pages -------------------------------------------------------------------------------------------------------


def list_part_views(run: Run) -> list[dict[str, Any]]:
    """Return the parts that have been queued, with the cells of the executed notebook and the files that they left."""
    if run.entry.kind != Entry.Kind.NOTEBOOK:
        return []
    parts = get_notebook_files(run.entry)
    views = []
    for part in run.parts.select_related("job", "run__entry"):
        cells, problem = read_executed_cells(part.job)
        shown = {"path": parts[part.number - 1].path, "files": list_model_files(part.job)}
        views.append({"part": part, "cells": cells, "problem": problem, **shown})
    return views


def read_executed_cells(job: Job) -> tuple[Sequence[Cell], str]:
    """Return the cells of the executed notebook, and the reason if there are none to show."""
    file = JobFile.objects.select_related("blob").filter(job=job, path=EXECUTED).first()
    if file is None:
        return [], ""
    if file.blob.size > MAX_BYTES:
        return [], f"The executed notebook has {file.blob.size:,} bytes, too many for a page: download it."
    try:
        return parse_cells(storage.read_blob(file.blob)), ""
    except NotebookError as error:
        return [], sanitize_text(str(error), 300)
