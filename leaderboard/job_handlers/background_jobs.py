"""What nodes do beside the trains: scorings, spot checks, smoke runs, prompts of visitors. One line for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Min, Q

from scheduler.estimates import QueueEstimates, StartEstimate
from scheduler.models import Job

NAMES = {
    "score": ("Scorings", "A trusted node judges what was trained, on text that no model has seen."),
    "replay": ("Spot checks", "A random stretch of a training, done again on another machine."),
    "smoke": ("Smoke runs", "A few minutes on a CPU that find most mistakes before a GPU is used."),
    "generate": ("Prompts", "Visitors who try a model."),
    "rephrase": ("Rephrasing", "Volunteers rewrite texts of a campaign, which become a dataset."),
}


@dataclass(frozen=True)
class BackgroundJobs:
    """The jobs of one kind."""

    name: str
    what: str
    running: int
    waiting: int
    since: datetime | None
    """When the one that has waited longest was queued."""
    prospect: StartEstimate | None
    """Of that one; None where none waits."""


def list_background_jobs(queue_estimates: QueueEstimates) -> list[BackgroundJobs]:
    """Return what runs or waits, in the order of `NAMES`. Two queries."""
    rows = {
        row["kind"]: row
        for row in Job.objects.filter(state__in=[Job.State.QUEUED, Job.State.LEASED], kind__in=NAMES)
        .order_by()
        .values("kind")
        .annotate(
            running=Count("pk", filter=Q(state=Job.State.LEASED)),
            waiting=Count("pk", filter=Q(state=Job.State.QUEUED)),
            first=Min("pk", filter=Q(state=Job.State.QUEUED)),
        )
    }
    first = Job.objects.in_bulk([row["first"] for row in rows.values() if row["first"]])
    return [
        build_background_jobs(kind, rows[kind], first.get(rows[kind]["first"]), queue_estimates)
        for kind in NAMES
        if kind in rows
    ]


def build_background_jobs(
    kind: str, row: Mapping[str, Any], first: Job | None, queue_estimates: QueueEstimates
) -> BackgroundJobs:
    name, what = NAMES[kind]
    return BackgroundJobs(
        name,
        what,
        row["running"],
        row["waiting"],
        first.queued_at if first else None,
        queue_estimates.get_estimate(first) if first else None,
    )
