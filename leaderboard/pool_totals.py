"""Totals of the pool since its start, computed at most once a minute."""

from __future__ import annotations

from dataclasses import dataclass

from django.core.cache import cache
from django.db.models import Sum

from leaderboard.models import Run
from scheduler.models import Lease
from scheduler.sponsors import contributions

CACHE_SECONDS = 60
KEY = "pool:totals"


@dataclass(frozen=True)
class Totals:
    lent: contributions.LentTotals
    """Totals of all leases, including those of the site's own nodes."""
    tokens: int
    """Tokens that all runs on nodes were trained on."""
    scored_runs: int


def get_totals() -> Totals:
    """Return the totals, from the cache if they are there."""
    totals: Totals | None = cache.get(KEY)
    if totals is None:
        totals = compute_totals()
        cache.set(KEY, totals, CACHE_SECONDS)
    return totals


def compute_totals() -> Totals:
    """Compute the totals with three queries."""
    worked_on = Run.objects.filter(job__isnull=False)
    return Totals(
        lent=contributions.sum_leases(Lease.objects.all()),
        tokens=worked_on.order_by().aggregate(total=Sum("tokens"))["total"] or 0,
        scored_runs=worked_on.filter(state=Run.State.FINISHED, bits_per_byte__isnull=False).count(),
    )
