"""The queue as lines of jobs that are alike: what matching chooses from."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import (
    BigIntegerField,
    Case,
    Count,
    DateTimeField,
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
from scheduler.models import Job, Lease
from scheduler.prepared import Later, Prepared

FAIR_SHARE_WINDOW = timedelta(days=7)
"""How far back per-author fair share looks."""
HAND_ON_PERIOD = timedelta(hours=24)
"""So long a run that has had its hours on a node is left to others; where there are none it comes back the next day."""
REFRESH_PER_JOB = timedelta(seconds=0.0006)
"""For so long, times the jobs that wait, the whole queue is not read again; 100,000 jobs are read once a minute."""
MAX_STALENESS = timedelta(seconds=10)
"""A look that is younger than this will do while another thread takes a new one."""
MAX_CLOCK_SKEW = timedelta(seconds=2)
"""Between the web processes."""
GROUP_FIELDS = (
    "kind",
    "priority",
    "impact",
    "expected_seconds",
    "author",
    "needs_labels",
    "needs_trusted",
    "needs_sandbox",
    "needs_disk_bytes",
    "needs_gpus",
    "needs_gpu_memory_bytes",
    "needs_memory_bytes",
    "track",
    "from_core",
    "checkpoint_seconds",
    "excluded_nodes",
    "excluded_owners",
)
LIST_FIELDS = ("needs_labels", "excluded_nodes", "excluded_owners")
"""Of these: JSON in a row, tuples in a line."""
SCALAR_FIELDS = tuple(name for name in GROUP_FIELDS if name not in LIST_FIELDS)


def is_startable(now: datetime | Later) -> Q:
    """A job that may begin now; where somebody has given it hours, it is within them."""
    return (Q(not_before=None) | Q(not_before__lte=now)) & (Q(not_after=None) | Q(not_after__gt=now))


def load_job_groups(now: datetime, since: datetime | None = None) -> list[matching.JobGroup]:
    """Return the queue, or what has come into it since then. One query, whatever its length."""
    rows = WHOLE.tuples(now=now) if since is None else NEW.tuples(now=now, since=since)
    return [build_group_from_row(dict(zip(COLUMNS, row, strict=True))) for row in rows]


COLUMNS = (*SCALAR_FIELDS, *(f"{name}_text" for name in LIST_FIELDS), "waiting_since", "jobs")


def as_lines(**more: Any) -> QuerySet[Job, tuple[Any, ...]]:
    """Return the jobs that wait as rows of these columns, with a moment that is told later."""
    waiting = Job.objects.filter(is_startable(Later("now", DateTimeField())), state=Job.State.QUEUED, **more)
    texts = {f"{name}_text": Cast(name, TextField()) for name in LIST_FIELDS}
    rows = waiting.order_by().annotate(**texts).values_list(*SCALAR_FIELDS, *texts)
    return rows.annotate(waiting_since=Min("queued_at"), jobs=Count("pk"))


WHOLE = Prepared(lambda: as_lines())
NEW = Prepared(lambda: as_lines(state_since__gt=Later("since", DateTimeField())))


def build_group_from_row(row: dict[str, Any]) -> matching.JobGroup:
    for name in LIST_FIELDS:
        row[name] = parse_list(row.pop(f"{name}_text"))
    return matching.JobGroup(**row)


@lru_cache(maxsize=4096)
def parse_list(text: str) -> tuple[Any, ...]:
    """Return a list from its JSON: thousands of lines say the same few."""
    return tuple(json.loads(text))


def build_group_from_job(job: Job) -> matching.JobGroup:
    """Return a job as a line of its own."""
    fields = {name: getattr(job, name) for name in GROUP_FIELDS}
    return matching.JobGroup(
        **{**fields, **{name: tuple(fields[name]) for name in LIST_FIELDS}}, waiting_since=job.queued_at
    )


def sum_author_seconds(now: datetime) -> dict[str, float]:
    """Return what each author had lately; a job under way counts for at least its expected length. One query."""
    rows: list[Any] = USED.tuples(since=now - FAIR_SHARE_WINDOW)
    return dict(rows)


def lately_used() -> QuerySet[Lease, tuple[Any, ...]]:
    under_way = When(state=Lease.State.ACTIVE, then=Greatest(F("seconds"), F("job__expected_seconds")))
    recent = Lease.objects.filter(started_at__gt=Later("since", DateTimeField())).order_by()
    return recent.values_list("job__author").annotate(seconds=Sum(Case(under_way, default=F("seconds"))))


USED = Prepared(lately_used)


# --- a look at the queue, shared by the questions of this process ----------------------------------------------------


class QueueCache:
    """The queue as this process read it last.

    Nodes ask hundreds of times a second, so within `settings.QUEUE_READ_SECONDS` all questions share a look. The next
    look reads only what has come since, until it is time to read all of it again: the longer the queue, the later.
    What is stale in it does no harm: a job is claimed by a conditional UPDATE, an emptied line is passed over, and
    whoever finds nothing looks again in a moment.
    """

    def __init__(self, job_lasts: timedelta = REFRESH_PER_JOB) -> None:
        self._job_lasts = job_lasts
        self._lock = threading.Lock()
        self._last: matching.JobQueue | None = None
        self._whole_at = datetime.min.replace(tzinfo=UTC)

    def queue(self, now: datetime) -> matching.JobQueue:
        last, lasts = self._last, timedelta(seconds=settings.QUEUE_READ_SECONDS)
        if last is not None and timedelta() <= now - last.read_at < lasts:
            return last
        # While somebody else is reading, the others go on with what there was a moment ago.
        recent = last is not None and timedelta() <= now - last.read_at < MAX_STALENESS
        if not self._lock.acquire(blocking=not recent):
            assert last is not None, "there is a recent look"
            return last
        try:
            return self._look(now)
        finally:
            self._lock.release()

    def _look(self, now: datetime) -> matching.JobQueue:
        last = self._last  # perhaps another thread has just renewed it
        if last is not None and timedelta() <= now - self._whole_at < last.jobs * self._job_lasts:
            last.add(load_job_groups(now, last.read_at - MAX_CLOCK_SKEW), now)
            return last
        self._last, self._whole_at = load_queue(now), now
        return self._last


QUEUE_CACHE = QueueCache()


def get_queue(now: datetime) -> matching.JobQueue:
    """Return the queue, as of now or of a moment ago."""
    return QUEUE_CACHE.queue(now) if settings.QUEUE_READ_SECONDS else load_queue(now)


def load_queue(now: datetime) -> matching.JobQueue:
    """Return the queue. Two queries, whatever its length."""
    return matching.JobQueue(load_job_groups(now), sum_author_seconds(now), now)


# --- from a line to a job --------------------------------------------------------------------------------------------


def get_group_values(line: matching.JobGroup) -> dict[str, Any]:
    """Return what the jobs of a line have in common, as values of their fields."""
    return {name: getattr(line, name) for name in GROUP_FIELDS} | {
        name: list(getattr(line, name)) for name in LIST_FIELDS
    }


def in_line() -> QuerySet[Job]:
    """Return the jobs of a line whose FIELDS are told later, who has waited longest first, without those that somebody
    else is just taking."""
    fields = {name: Later(name, Job._meta.get_field(name)) for name in GROUP_FIELDS}
    jobs = Job.objects.filter(is_startable(Later("now", DateTimeField())), state=Job.State.QUEUED, **fields)
    if connection.features.has_select_for_update_skip_locked:
        jobs = jobs.select_for_update(skip_locked=True)
    return jobs.order_by("queued_at", "pk")


def not_handed_on() -> QuerySet[Job]:
    """Return those of them that a node has not lately given more than half of what its owner lends to one run."""
    lasted = ExpressionWrapper(F("ended_at") - F("started_at"), output_field=DurationField())
    node, since = Later("node", BigIntegerField()), Later("since", DateTimeField())
    ended = Lease.objects.filter(job=OuterRef("pk"), node=node, ended_at__gt=since)
    return in_line().filter(~Exists(ended.alias(lasted=lasted).filter(lasted__gt=Later("half", DurationField()))))
