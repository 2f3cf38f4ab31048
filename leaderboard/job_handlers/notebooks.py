"""Notebook runs of the community: each part a job, one after the other, on the queue and in the sandbox of all others.

What a part leaves in `model/` is kept with its job, handed to the next part, and offered for download. A notebook has
no score: a run of it is finished when its last cell was run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils import timezone
from pydantic import ValidationError

from leaderboard import runs
from leaderboard.formatting import duration
from leaderboard.job_handlers import train
from leaderboard.models import Entry, NotebookPart, Run
from leaderboard.sanitize import plain_text
from leaderboard.submissions.notebook_cells import MAX_BYTES, Cell, NotebookError, parse_cells
from scheduler import storage
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import Checkpoint, Job, JobFile, Lease
from trainer import protocol
from trainer.accounting.budget import Budget

EXECUTED = "executed.ipynb"
MODEL = "model/"
ACTIVE_STATES = (Run.State.QUEUED, Run.State.TRAINING, Run.State.PAUSED)


def get_notebook_files(entry: Entry) -> list[protocol.FileRef]:
    """Return the parts that were approved, first part first."""
    return [protocol.FileRef.model_validate(part) for part in entry.notebooks]


def get_part(job: Job) -> NotebookPart:
    """Return which part a job runs. A run's first job gets its row here, later ones when they are queued."""
    run = Run.objects.select_related("entry", "track__season").filter(job=job).first()
    known = NotebookPart.objects.select_related("run__entry", "run__track__season").filter(job=job).first()
    if known is not None:
        return known
    assert run is not None, "a job of this kind is a run's"
    return NotebookPart.objects.create(run=run, number=run.parts.count() + 1, job=job)


def get_part_seconds(run: Run) -> float:
    """Return how long each part may take: the run's budget where that is a time, else what its track expects."""
    budget = Budget.parse(run.budget)
    return budget.amount if budget.kind == "seconds" else run.expected_seconds


def list_model_files(job: Job) -> list[protocol.FileRef]:
    """Return what a part left in `model/`, with paths below it."""
    files = JobFile.objects.select_related("blob").filter(job=job, path__startswith=MODEL).order_by("path")
    return [storage.build_file_reference(file.blob, file.path.removeprefix(MODEL)) for file in files]


class NotebookHandler(JobKind):
    """Jobs of kind `notebook`."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.NotebookOrder:
        part = get_part(job)
        parts = get_notebook_files(part.run.entry)
        before = part.run.parts.filter(number=part.number - 1).first()
        season = part.run.season
        return protocol.NotebookOrder(
            notebook=parts[part.number - 1],
            dataset=season.dataset() if season.is_prepared else None,
            part=part.number,
            parts=len(parts),
            seconds=get_part_seconds(part.run),
            model=tuple(list_model_files(before.job)) if before else (),
        )

    def handle_lease(self, job: Job, lease: Lease) -> None:
        part = get_part(job)
        part.run.change(
            Run.State.TRAINING,
            since=ACTIVE_STATES,
            actor=f"node:{lease.node.name}",
            sentence=f"{describe_part(part)} runs on {lease.node.name}.",
            reason="",
            node_name=lease.node.name,
            node_class=train.get_node_class(lease),
            started_at=part.run.started_at or timezone.now(),
        )

    def handle_metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        """Nothing: a notebook has no curve of ours."""

    def handle_checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        """Nothing: what a notebook keeps, it keeps in `model/`."""

    def handle_requeue(self, job: Job, reason: str) -> None:
        part = get_part(job)
        when = "once it is let go on" if job.state == Job.State.HELD else "as soon as a node is free"
        again = f"{describe_part(part)} starts again {when}."
        part.run.change(
            Run.State.PAUSED,
            since=[Run.State.TRAINING],
            actor=runs.SITE,
            sentence=f"Left its node ({reason.rstrip('.')}). {again}",
            reason=f"{reason} {again}"[:500],
        )

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        """Queue the next part; after the last one the run has arrived."""
        part = get_part(job)
        try:
            found = protocol.NotebookResult.model_validate(result)
        except ValidationError:
            train.fail_run(part.run, "infrastructure", "The node's answer about the notebook cannot be right.")
            return
        count = len(get_notebook_files(part.run.entry))
        if part.number < count:
            queue_next_part(part, count)
        else:
            finish_run(part, found)

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        train.fail_run(get_part(job).run, cause, reason)

    def handle_cancellation(self, job: Job, reason: str) -> None:
        train.cancel_run(get_part(job).run, reason)

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        parts = NotebookPart.objects.filter(job__in=jobs).select_related("run__entry")
        return {
            part.job_id: JobSummary(get_job_title(part), part.run.get_absolute_url(), part.run.state) for part in parts
        }


def describe_part(part: NotebookPart) -> str:
    count = len(part.run.entry.notebooks)
    return "The notebook" if count == 1 else f"Part {part.number} of {count}"


def get_job_title(part: NotebookPart) -> str:
    count = len(part.run.entry.notebooks)
    return f"Notebook {part.run.entry.title}" + (f", part {part.number} of {count}" if count > 1 else "")


def queue_next_part(part: NotebookPart, count: int) -> None:
    """Queue the part after this one, on any node, behind nobody who came later than its run."""
    run = part.run
    job = runs.build_train_job(run, part.job.release)
    following = Job.objects.create(**job, queued_at=part.job.queued_at)
    if run.change(
        Run.State.QUEUED,
        since=ACTIVE_STATES,
        actor=runs.SITE,
        sentence=f"{describe_part(part)} is done; part {part.number + 1} is queued.",
        reason="",
        job=following,
        fraction=part.number / count,
    ):
        NotebookPart.objects.create(run=run, number=part.number + 1, job=following)
    else:
        following.delete()


def finish_run(part: NotebookPart, found: protocol.NotebookResult) -> None:
    now = timezone.now()
    kept = f"; it left {found.left} {'file' if found.left == 1 else 'files'} in {MODEL}" if found.left else ""
    part.run.change(
        Run.State.FINISHED,
        since=ACTIVE_STATES,
        actor=runs.SITE,
        sentence=f"The notebook has run to its last cell, in {duration(found.seconds)}{kept}.",
        reason="",
        trained_at=now,
        finished_at=now,
        fraction=1.0,
    )


# --- for pages -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartView:
    """A part as its run's page shows it."""

    part: NotebookPart
    path: str
    cells: Sequence[Cell]
    """Of the executed notebook; empty while there is none, or with a `problem`."""
    problem: str
    files: Sequence[protocol.FileRef]


def list_part_views(run: Run) -> list[PartView]:
    """Return the parts that have begun, with what came of them."""
    if run.entry.kind != Entry.Kind.NOTEBOOK:
        return []
    parts = get_notebook_files(run.entry)
    return [
        PartView(part, parts[part.number - 1].path, *read_executed_cells(part.job), list_model_files(part.job))
        for part in run.parts.select_related("job", "run__entry")
    ]


def read_executed_cells(job: Job) -> tuple[Sequence[Cell], str]:
    """Return the cells of the notebook as it ran, and in a sentence why there are none to show."""
    file = JobFile.objects.select_related("blob").filter(job=job, path=EXECUTED).first()
    if file is None:
        return [], ""
    if file.blob.size > MAX_BYTES:
        return [], f"The executed notebook has {file.blob.size:,} bytes, too many for a page: download it."
    try:
        return parse_cells(storage.read_blob(file.blob)), ""
    except NotebookError as error:
        return [], plain_text(str(error), 300)
