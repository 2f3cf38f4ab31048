"""Background jobs on the queue page: one line for each kind of job other than training."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Min, Q

from scheduler.estimates import QueueEstimates
from scheduler.models import Job

NAMES = {
    "score": ("Scorings", "A trusted node judges what was trained, on text that no model has seen."),
    "replay": ("Spot checks", "A random stretch of a training, done again on another machine."),
    "smoke": ("Smoke tests", "A few minutes on a CPU that find most mistakes before a GPU is used."),
    "generate": ("Prompts", "Visitors who try a model."),
    "swarm_sample": ("Prompts to swarms", "Visitors who try a model that a swarm is training."),
    "rephrase": ("Rephrasing", "Volunteers rewrite texts of a campaign, which become a dataset."),
}


def list_background_jobs(queue_estimates: QueueEstimates | None) -> list[dict[str, Any]]:
    """Return the kinds that run or wait, in the order of `NAMES`. Two queries.

    `since` and `estimate` are those of the job that has waited longest. `queue_estimates` is None if no job waits.
    """
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
    jobs = Job.objects.in_bulk([row["first"] for row in rows.values() if row["first"]])
    return [
        {
            **rows[kind],
            "name": name,
            "what": what,
            "since": first.queued_at if first else None,
            "estimate": queue_estimates.get_estimate(first) if first and queue_estimates else None,
        }
        for kind, (name, what) in NAMES.items()
        if kind in rows
        for first in [jobs.get(rows[kind]["first"])]
    ]
