"""What the outcome of a job says about its node."""

from __future__ import annotations

from scheduler import pool
from scheduler.models import Job, Node


def record_success(node: Node, job: Job) -> None:
    """Record that a job ended on the node, perhaps by a confirmed failure of its model."""
    pool.record_job_success(node)


def record_machine_fault(node: Node, reason: str, job: Job) -> None:
    """Record that a job failed because of the node."""
    pool.record_node_failure(node)
