"""Deletes old rows that no dataset needs: rejected, withdrawn and replica texts, released assignments, empty sessions.

Contributions keep the counts. Leases stay: the sponsors' credit is summed from them.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from scheduler import transitions
from scheduler.campaigns.models import Assignment, Rephrasing
from scheduler.campaigns.sessions import KIND
from scheduler.models import Job

logger = logging.getLogger(__name__)

ROWS_PER_BATCH = 2_000


def delete_expired(now: datetime | None = None) -> dict[str, int]:
    """Delete rows older than REPHRASE_TEXT_DAYS; return how many of each kind. Idempotent."""
    due = (now or timezone.now()) - timedelta(days=settings.REPHRASE_TEXT_DAYS)
    texts = Rephrasing.objects.exclude(state=Rephrasing.State.ACCEPTED).filter(created_at__lt=due)
    ended = [Assignment.State.RELEASED, Assignment.State.REFUSED, Assignment.State.WITHDRAWN]
    assignments = Assignment.objects.filter(state__in=ended, ended_at__lt=due, rephrasings=None)
    sessions = Job.objects.filter(kind=KIND, state__in=transitions.FINAL_STATES, finished_at__lt=due, leases=None)
    due_rows = {"texts": texts, "assignments": assignments, "sessions": sessions}
    deleted = {name: delete_in_batches(rows) for name, rows in due_rows.items()}
    if any(deleted.values()):
        logger.info("Deleted from the dataset swarm: %s", deleted)
    return deleted


def delete_in_batches(rows: QuerySet[Any]) -> int:
    """Delete these rows in short transactions; return how many."""
    total = 0
    while batch := list(rows.order_by().values_list("pk", flat=True)[:ROWS_PER_BATCH]):
        rows.model.objects.filter(pk__in=batch).delete()
        total += len(batch)
    return total
