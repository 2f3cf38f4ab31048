"""When the results of a node that nobody vouches for are taken without a look: BOINC's rule for new machines.

Ten results in a row have to agree with what the site knows from elsewhere; after that a result is compared at random,
with probability 1 / n where n agreed in a row; a single one that does not agree begins the ten anew (BOINC's "adaptive
replication", boinc.berkeley.edu/trac/wiki/AdaptiveReplication). What a known result is, the owner of the work decides
and tells `judge`. A trusted node is never compared: it has a maintainer's word.
"""

from __future__ import annotations

import secrets
from fractions import Fraction

from django.db import IntegrityError, transaction

from scheduler import node_quota
from scheduler.models import Event, Job, Node, ResultCheck

PROBATION = 10
"""Results in a row that have to agree before one is taken without a look."""


def is_vetted(valid_in_a_row: int) -> bool:
    return valid_in_a_row >= PROBATION


def get_check_probability(valid_in_a_row: int) -> Fraction:
    """Return how likely the next result is to be compared: always in the probation, later 1 / n."""
    return Fraction(1, valid_in_a_row) if is_vetted(valid_in_a_row) else Fraction(1)


def count_valid_in_a_row(valid_in_a_row: int, valid: bool) -> int:
    """Return how many agreed in a row once one more was compared."""
    return valid_in_a_row + 1 if valid else 0


def is_result_accepted(node: Node) -> bool:
    """Whether what the node computes counts before anybody has looked at it."""
    return node.trusted or is_vetted(node.valid_in_a_row)


def draw_check(node: Node) -> bool:
    """Draw whether the result that the node has just handed in is to be compared. Nobody can foresee it."""
    if node.trusted:
        return False
    odds = get_check_probability(node.valid_in_a_row)
    return secrets.randbelow(odds.denominator) < odds.numerator


def record_verdict(node: Node, job: Job, valid: bool, sentence: str, *, actor: str) -> bool:
    """Note what the comparison by `job` said of the node's work; return whether this call did (once for each job)."""
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
    """Return what that makes of the node, for its owner."""
    if is_vetted(valid_in_a_row):
        return f"{valid_in_a_row} results in a row agreed: its work counts, and is compared at random."
    left = PROBATION - valid_in_a_row
    return f"{left} more in a row and its work counts before it is compared."
