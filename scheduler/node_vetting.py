"""Vetting of untrusted nodes by comparisons of their results with known ones.

BOINC's "adaptive replication" (boinc.berkeley.edu/trac/wiki/AdaptiveReplication): ten results in a row have to agree.
From then on a result is compared with probability 1 / n after n agreements in a row. A disagreement resets the count.
The caller decides what a known result is. Results of trusted nodes are never compared.
"""

from __future__ import annotations

import secrets
from fractions import Fraction

from django.db import IntegrityError, transaction

from scheduler import node_quota
from scheduler.models import Event, Job, Node, ResultCheck

PROBATION = 10
"""Results in a row that have to agree before one is accepted without a comparison."""


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
            node.quota = node_quota.adjust_quota(before.quota, valid)
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
