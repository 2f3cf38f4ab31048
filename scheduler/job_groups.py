"""The queue in groups of equal jobs: what matching chooses from."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from django.db.models import (
    Case,
    Count,
    DurationField,
    Exists,
    ExpressionWrapper,
    F,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Sum,
    TextField,
    When,
)
from django.db.models.functions import Cast, Greatest

from scheduler import matching
from scheduler.models import Job, Lease, Node

FAIR_SHARE_WINDOW = timedelta(days=7)
"""Age of the oldest usage that counts in the fair share of authors."""
HAND_ON_PERIOD = timedelta(hours=24)
"""A run that hits a node's time limit is not scheduled there again for so long."""
GROUP_FIELDS = tuple(field.name for field in fields(matching.JobGroup) if field.name not in ("waiting_since", "jobs"))
"""Columns of `Job` that its group has too."""
LIST_FIELDS = ("needs_labels", "excluded_nodes", "excluded_owners")
"""JSON in a row, tuples in a group."""
SCALAR_FIELDS = tuple(name for name in GROUP_FIELDS if name not in LIST_FIELDS)


def is_startable(now: datetime) -> Q:
    """Return the condition that a job may start now, by `not_before` and `not_after`."""
    return (Q(not_before=None) | Q(not_before__lte=now)) & (Q(not_after=None) | Q(not_after__gt=now))


def load_job_groups(now: datetime) -> list[matching.JobGroup]:
    """Return the queue in groups. One query for any length."""
    waiting = Job.objects.filter(is_startable(now), state=Job.State.QUEUED)
    texts = {f"{name}_text": Cast(name, TextField()) for name in LIST_FIELDS}
    rows = waiting.order_by().annotate(**texts).values(*SCALAR_FIELDS, *texts)
    groups = []
    for row in rows.annotate(waiting_since=Min("queued_at"), jobs=Count("pk")):
        lists: dict[str, Any] = {name: parse_list(row.pop(f"{name}_text")) for name in LIST_FIELDS}
        groups.append(matching.JobGroup(**row, **lists))
    return groups


@lru_cache(maxsize=4096)
def parse_list(text: str) -> tuple[Any, ...]:
    """Return a JSON list as a tuple. Cached: thousands of rows hold the same few lists."""
    return tuple(json.loads(text))


def build_group_from_job(job: Job) -> matching.JobGroup:
    """Return a group of this job alone."""
    columns: dict[str, Any] = {name: getattr(job, name) for name in GROUP_FIELDS}
    columns |= {name: tuple(columns[name]) for name in LIST_FIELDS}
    return matching.JobGroup(**columns, waiting_since=job.queued_at)


def sum_author_seconds(now: datetime) -> dict[str, float]:
    """Return the seconds that each author used within the window; a running job counts its expected time at least."""
    used = Case(
        When(state=Lease.State.ACTIVE, then=Greatest(F("seconds"), F("job__expected_seconds"))), default=F("seconds")
    )
    recent = Lease.objects.filter(started_at__gt=now - FAIR_SHARE_WINDOW).order_by()
    return dict(recent.values_list("job__author").annotate(total=Sum(used)))


def load_queue(now: datetime) -> matching.JobQueue:
    """Read the whole queue. Two queries for any length."""
    return matching.JobQueue(load_job_groups(now), sum_author_seconds(now), now)


# --- from a group to a job --------------------------------------------------------------------------------------------


def filter_group(group: matching.JobGroup, now: datetime) -> QuerySet[Job]:
    """Return the queued jobs of a group, oldest first."""
    lists = {name: list(getattr(group, name)) for name in LIST_FIELDS}
    alike = {name: getattr(group, name) for name in SCALAR_FIELDS} | lists
    return Job.objects.filter(is_startable(now), state=Job.State.QUEUED, **alike).order_by("queued_at", "pk")


def has_reached_time_limit(node: Node, now: datetime) -> Exists:
    """Return the condition that the node has lately run the job for more than half of its owner's limit for one run."""
    assert node.max_hours is not None
    ended = Lease.objects.filter(job=OuterRef("pk"), node=node, ended_at__gt=now - HAND_ON_PERIOD)
    lasted = ended.annotate(lasted=ExpressionWrapper(F("ended_at") - F("started_at"), output_field=DurationField()))
    return Exists(lasted.filter(lasted__gt=timedelta(hours=node.max_hours) / 2))
