"""Nodes that may check an entry: neither they nor their owners had a part in it."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet

from leaderboard.models import Entry, Run
from scheduler.models import Lease, Node


def find_related_nodes(entry: Entry) -> list[int]:
    """Return the ids of the nodes that trained the entry, confirmations excepted."""
    trained = entry.runs.exclude(purpose=Run.Purpose.CONFIRMATION).values("job")
    return sorted(Lease.objects.filter(job__in=trained).values_list("node", flat=True).distinct())


def find_related_people(entry: Entry) -> list[int]:
    """Return the user ids of its author, of who entered it, and of the owners of its nodes."""
    people = User.objects.filter(
        Q(pk=entry.requested_by_id) | Q(username__iexact=entry.author) | Q(node__in=find_related_nodes(entry))
    )
    return sorted(people.values_list("pk", flat=True).distinct())


def build_job_constraints(entry: Entry) -> dict[str, Any]:
    """Return the fields of a job for trusted nodes unrelated to the entry."""
    return {
        "needs_trusted": True,
        "excluded_nodes": find_related_nodes(entry),
        "excluded_owners": find_related_people(entry),
    }


def find_unrelated_nodes(entry: Entry) -> QuerySet[Node]:
    nodes = Node.objects.filter(trusted=True).exclude(state=Node.State.BANNED).exclude(pk__in=find_related_nodes(entry))
    return nodes.filter(Q(owner=None) | ~Q(owner__in=find_related_people(entry)))
