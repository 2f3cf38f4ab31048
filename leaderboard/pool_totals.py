"""What the pool has done since it began: a handful of sums, read at most once a minute."""

from __future__ import annotations

from dataclasses import dataclass

from django.core.cache import cache
from django.db.models import Sum

from leaderboard.models import Run
from scheduler.models import Lease
from scheduler.sponsors import contributions

KEPT_SECONDS = 60
KEY = "pool:totals"


@dataclass(frozen=True)
class Totals:
    given: contributions.LentTotals
    """All leases, of lent nodes and of the site's own."""
    tokens: int
    """Trained on, by every run that a node worked on."""
    judged: int
    """Runs with a verdict."""


def totals() -> Totals:
    """Return the sums. Three queries, or none."""
    kept: Totals | None = cache.get(KEY)
    if kept is None:
        kept = counted()
        cache.set(KEY, kept, KEPT_SECONDS)
    return kept


def counted() -> Totals:
    worked_on = Run.objects.filter(job__isnull=False)
    return Totals(
        given=contributions.add_totals(contributions.sum_leases_by_node(Lease.objects.all()).values()),
        tokens=worked_on.order_by().aggregate(total=Sum("tokens"))["total"] or 0,
        judged=worked_on.filter(state=Run.State.FINISHED, bits_per_byte__isnull=False).count(),
    )
