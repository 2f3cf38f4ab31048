"""Vetting of untrusted nodes by comparisons of their results with known ones.

BOINC's "adaptive replication" (boinc.berkeley.edu/trac/wiki/AdaptiveReplication): ten results in a row have to agree.
From then on a result is compared with probability 1 / n after n agreements in a row. A disagreement resets the count.
The caller decides what a known result is. Results of trusted nodes are never compared.

A result that disagrees also halves the node's jobs per day, one that agrees doubles them. This is BOINC's daily quota
per host, which keeps a broken machine from consuming the queue (Anderson, "BOINC: A Platform for Volunteer Computing",
2019, section 3.2).
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from fractions import Fraction

from django.db import IntegrityError, transaction

from scheduler.models import Event, Job, Lease, Node, ResultCheck

PROBATION = 10
"""Results in a row that have to agree before one is accepted without a comparison."""
FULL_QUOTA = 1024
"""Jobs per day: practically no limit."""
FIRST_REDUCED_QUOTA = 16
"""The quota after the first result that disagrees."""
DAY = timedelta(days=1)


def is_vetted(valid_in_a_row: int) -> bool:
    return valid_in_a_row >= PROBATION


def get_check_probability(valid_in_a_row: int) -> Fraction:
    """Return the probability that the next result is compared."""
    return Fraction(1, valid_in_a_row) if is_vetted(valid_in_a_row) else Fraction(1)


def count_valid_in_a_row(valid_in_a_row: int, valid: bool) -> int:
    """Return the number of agreements in a row after another comparison."""
    return valid_in_a_row + 1 if valid else 0


def is_result_accepted(node: Node) -> bool:
    """Return whether the node's results count before they are compared."""
    return node.trusted or is_vetted(node.valid_in_a_row)


def draw_check(node: Node) -> bool:
    """Draw whether the node's latest result is compared; the node cannot predict it."""
    if node.trusted:
        return False
    probability = get_check_probability(node.valid_in_a_row)
    return secrets.randbelow(probability.denominator) < probability.numerator


def record_verdict(node: Node, job: Job, valid: bool, sentence: str, *, actor: str) -> bool:
    """Record the comparison of the node's result by `job`; return whether this call did. Each job counts once."""
    try:
        with transaction.atomic():
            ResultCheck.objects.create(node=node, job=job, valid=valid, sentence=sentence[:500])
            before = Node.objects.select_for_update().get(pk=node.pk)
            node.valid_in_a_row = count_valid_in_a_row(before.valid_in_a_row, valid)
            node.quota = adjust_quota(before.quota, valid)
            Node.objects.filter(pk=node.pk).update(valid_in_a_row=node.valid_in_a_row, quota=node.quota)
            Event.record(actor, node, f"{sentence} {describe_standing(node.valid_in_a_row)}")
    except IntegrityError:
        return False
    return True


def describe_standing(valid_in_a_row: int) -> str:
    """Return the node's standing, for its owner."""
    if is_vetted(valid_in_a_row):
        return f"{valid_in_a_row} results in a row agreed. Its results count and are compared at random."
    left = PROBATION - valid_in_a_row
    return f"After {left} more in a row its results count before they are compared."


# --- the daily quota --------------------------------------------------------------------------------------------------


def adjust_quota(quota: int, valid: bool) -> int:
    """Return the quota after another compared result."""
    if valid:
        return FULL_QUOTA if quota >= FIRST_REDUCED_QUOTA else quota * 2
    return FIRST_REDUCED_QUOTA if quota > FIRST_REDUCED_QUOTA else max(quota // 2, 1)


def get_quota_reset(node: Node, now: datetime) -> datetime | None:
    """Return when the node gets its next job; None for now. One query if its quota is reduced."""
    if node.trusted or node.quota >= FULL_QUOTA:
        return None
    recent = Lease.objects.filter(node=node, started_at__gt=now - DAY).order_by("-started_at")
    times = list(recent.values_list("started_at", flat=True)[: node.quota])
    return times[-1] + DAY if len(times) == node.quota else None


def describe_quota(node: Node, until: datetime) -> str:
    jobs = "one job" if node.quota == 1 else f"{node.quota} jobs"
    return (
        f"Results of this node disagreed with others. It gets {jobs} a day until they agree again, "
        f"the next at {until:%H:%M} UTC."
    )
