"""Forgetting what is in no dataset: texts that were rejected, withdrawn or written for comparison, and empty sittings.

How many there were, and why, stays in the shares; who wrote what counts stays with the text. Leases stay as those of
other jobs do: what nodes have given is summed from them.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from scheduler import transitions
from scheduler.campaigns.sessions import KIND
from scheduler.models import Handout, Job, Rephrasing

logger = logging.getLogger(__name__)

IN_ONE_STEP = 2_000
GIVEN_UP = (Handout.State.BACK, Handout.State.REFUSED, Handout.State.VOID)


def forget_old(now: datetime | None = None) -> dict[str, int]:
    """Forget whatever is due; return how many rows of what. Safe to run at any time."""
    due = (now or timezone.now()) - timedelta(days=settings.REPHRASE_TEXT_DAYS)
    forgotten = {
        "texts": forget(Rephrasing.objects.filter(at__lt=due).exclude(state=Rephrasing.State.ACCEPTED)),
        "handouts": forget(Handout.objects.filter(state__in=GIVEN_UP, answered_at__lt=due, rephrasings=None)),
        "sittings": forget(
            Job.objects.filter(kind=KIND, state__in=transitions.FINAL_STATES, finished_at__lt=due, leases=None)
        ),
    }
    if any(forgotten.values()):
        logger.info("Forgot of the dataset swarm: %s", forgotten)
    return forgotten


def forget(due: QuerySet[Any]) -> int:
    """Delete these rows, some at a time, so that nobody waits for long; return how many."""
    total = 0
    while some := list(due.order_by().values_list("pk", flat=True)[:IN_ONE_STEP]):
        due.model._base_manager.filter(pk__in=some).delete()
        total += len(some)
    return total
