"""Hand-written SQL of the pool: the statements that requests of nodes run hundreds of times a second.

`python -m benchmarks.pool` measures polls. With the ORM they take 3 to 5 times as much CPU, most of it to build the
statements: 2.2 ms for the node of a token (here 0.5), 0.9 ms for its windows (0.3), 22 ms to write 30 nodes (4).
`python -m benchmarks.load.cpu` measures the requests of leases: 2.5 to 2.8 ms for a lease with its node and job (here
1.0 to 1.4).
"""

from __future__ import annotations

from collections.abc import Collection

from django.db import connection, transaction

from scheduler.models import Job, Lease, Node, Window

SELECT_NODE = """
    SELECT scheduler_node.*, EXISTS (
        SELECT 1 FROM scheduler_lease WHERE node_id = scheduler_node.id AND scheduler_lease.state = %s
    ) AS has_lease
    FROM scheduler_node WHERE token_hash = %s
"""
SELECT_LEASE = "SELECT * FROM scheduler_lease WHERE id = %s"
SELECT_LEASE_NODE = "SELECT * FROM scheduler_node WHERE id = %s"
SELECT_LEASE_JOB = "SELECT * FROM scheduler_job WHERE id = %s"
SELECT_WINDOWS = "SELECT * FROM scheduler_window WHERE node_id = %s ORDER BY weekday, start"
UPDATE_LAST_SEEN = "UPDATE scheduler_node SET last_seen = %s, hardware = %s, health = %s WHERE id = %s"
MAX_ID = 2**63 - 1
"""Larger ids cannot exist, and databases refuse to look for them."""
LAST_SEEN_COLUMNS = ("last_seen", "hardware", "health")


def find_node(token_hash: str) -> Node | None:
    """Return the node with this token, with the annotation `has_lease`: whether it holds an active lease."""
    return next(iter(Node.objects.raw(SELECT_NODE, [Lease.State.ACTIVE, token_hash])), None)


def find_lease(lease_id: int) -> Lease | None:
    """Return the lease with its node and its job. None if it does not exist.

    Three queries, which take less CPU than one by the ORM.
    """
    if lease_id > MAX_ID:
        return None
    lease = next(iter(Lease.objects.raw(SELECT_LEASE, [lease_id])), None)
    if lease is None:
        return None
    node = next(iter(Node.objects.raw(SELECT_LEASE_NODE, [lease.node_id])), None)
    job = next(iter(Job.objects.raw(SELECT_LEASE_JOB, [lease.job_id])), None)
    if node is None or job is None:
        return None
    lease.node, lease.job = node, job
    return lease


def load_windows(node: Node) -> list[Window]:
    """Return the node's windows if its owner lends it in windows. Then one query."""
    return list(Window.objects.raw(SELECT_WINDOWS, [node.pk])) if node.available == Node.Available.WINDOWS else []


def update_last_seen(nodes: Collection[Node]) -> None:
    """Write the `LAST_SEEN_COLUMNS` of nodes in the order of ids, so that two processes cannot deadlock."""
    fields = {field.name: field for field in Node._meta.concrete_fields}
    rows = [
        [fields[name].get_db_prep_save(getattr(node, name), connection) for name in (*LAST_SEEN_COLUMNS, "id")]
        for node in sorted(nodes, key=lambda node: node.pk)
    ]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.executemany(UPDATE_LAST_SEEN, rows)
