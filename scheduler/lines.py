"""The queue as lines of jobs that are alike: what matching chooses from."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import connection
from django.db.models import Case, F, Min, Sum, When
from django.db.models.functions import Greatest

from scheduler import matching
from scheduler.models import Job, Lease

SHARE_WINDOW = timedelta(days=7)
"""How far back per-author fair share looks."""
FIELDS = (
    "priority",
    "impact",
    "expected_seconds",
    "author",
    "needs_labels",
    "needs_trusted",
    "needs_sandbox",
    "needs_disk_bytes",
    "excluded_nodes",
    "excluded_owners",
)
LISTS = ("needs_labels", "excluded_nodes", "excluded_owners")
"""Of these: JSON in a row, tuples in a line."""


def waiting_lines() -> list[matching.Line]:
    """Return the queue. One query, whatever its length."""
    rows = (
        Job.objects.filter(state=Job.State.QUEUED).order_by().values(*FIELDS).annotate(waiting_since=Min("queued_at"))
    )
    return [matching.Line(**{**row, **{name: tuple(row[name]) for name in LISTS}}) for row in rows]


def seconds_used(now: datetime) -> dict[str, float]:
    """Return what each author had lately; a job under way counts for at least its expected length. One query."""
    under_way = When(state=Lease.State.ACTIVE, then=Greatest(F("seconds"), F("job__expected_seconds")))
    rows = (
        Lease.objects.filter(started_at__gt=now - SHARE_WINDOW)
        .order_by()
        .values_list("job__author")
        .annotate(seconds=Sum(Case(under_way, default=F("seconds"))))
    )
    return dict(rows)


def first_of(line: matching.Line) -> Job | None:
    """Return the job of this line that has waited longest and that nobody else is just taking. Bring a transaction."""
    alike = {name: getattr(line, name) for name in FIELDS} | {name: list(getattr(line, name)) for name in LISTS}
    waiting = Job.objects.filter(state=Job.State.QUEUED, **alike).order_by("queued_at", "pk")
    if connection.features.has_select_for_update_skip_locked:
        waiting = waiting.select_for_update(skip_locked=True)
    return waiting.first()
