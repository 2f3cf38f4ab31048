"""The pool's nodes with their work, for pages, exports and the API."""

from __future__ import annotations

from django.db.models import Prefetch, QuerySet

from scheduler.models import Lease, Node


def find_working_nodes() -> QuerySet[Node]:
    """Return the nodes that have polled and may work, with `node.now`: their active leases.

    A volunteer can be registered under any name by any visitor, so registrations without a poll are not listed.
    """
    active = Lease.objects.filter(state=Lease.State.ACTIVE).order_by("slot")
    active = active.select_related("job__run", "job__scored_run")
    polled = Node.objects.exclude(state=Node.State.BANNED).exclude(last_seen=None)
    return polled.select_related("owner__sponsor").prefetch_related(Prefetch("leases", active, to_attr="now"))
