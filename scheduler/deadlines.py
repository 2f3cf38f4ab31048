"""Giving a node back in time: when is it to keep a checkpoint, send it off and hand its job back?

Its owner's window closes, or the run has had the hours that its owner lends to one. The job goes on elsewhere.
"""

from __future__ import annotations

from datetime import datetime

from django.conf import settings

from scheduler import node_slots
from scheduler.matching import NodeSlot
from scheduler.models import Job, Lease, Node

SAVE_SECONDS = 60.0
"""To write the last checkpoint. A guess."""
DEFAULT_UPLOAD_BYTES_PER_SECOND = 1e6
"""Bytes a second that a node's network is taken to send where nobody has measured it. A careful guess."""
MAX_NOTICE_SECONDS = 3600.0
"""Nobody is asked sooner than an hour before the end, however slow his network."""


def find_stop_reason(lease: Lease, now: datetime) -> str:
    """Return why the node is to hand the job back now, in a sentence; empty while there is time."""
    node = lease.node
    closes, spent = node_slots.get_seconds_left(node, now), get_loan_seconds_left(lease, now)
    left = min((seconds for seconds in (closes, spent) if seconds is not None), default=None)
    if left is None or left > MAX_NOTICE_SECONDS or left > estimate_notice_seconds(lease.job, node):
        return ""
    if left == closes:
        return "Its owner wants the machine back soon; the job goes on elsewhere."
    return f"Its owner lends {node.max_hours:g} hours to one run; the job goes on elsewhere."


def ends_too_soon(job: Job, node: Node, seeker: NodeSlot) -> bool:
    """Whether the node would be asked to hand the job back before any of it is saved. A query where an end is near."""
    left = min((seconds for seconds in (seeker.seconds_left, seeker.max_seconds) if seconds is not None), default=None)
    worked = min(job.checkpoint_seconds or job.expected_seconds, job.expected_seconds)
    if left is None or left > worked + MAX_NOTICE_SECONDS:
        return False
    return left <= worked + estimate_notice_seconds(job, node)


def get_loan_seconds_left(lease: Lease, now: datetime) -> float | None:
    """Return how many seconds are left of what the node's owner lends to one run; None where there is no limit."""
    if lease.node.max_hours is None:
        return None
    return lease.node.max_hours * node_slots.HOUR - (now - lease.started_at).total_seconds()


def estimate_notice_seconds(job: Job, node: Node) -> float:
    """Return how long before the end the node has to be asked: until it hears of it, for saving, for sending."""
    notice = settings.LEASE_SECONDS / 2 + SAVE_SECONDS + estimate_upload_seconds(job, node)
    if node.max_hours is not None:
        notice = min(notice, node.max_hours * node_slots.HOUR / 4)  # most of a short loan is still for work
    return min(notice, MAX_NOTICE_SECONDS)


def estimate_upload_seconds(job: Job, node: Node) -> float:
    """Return about how long the job's next checkpoint takes to send, going by its last one. One query."""
    last = job.checkpoints.order_by("-step").values_list("manifest", flat=True).first()
    size = sum(int(file["size"]) for file in last["files"]) if last else 0
    return size / get_upload_speed(node)


def get_upload_speed(node: Node) -> float:
    """Return how many bytes a second the node sends."""
    return float(node.hardware.get("network_bytes_per_second") or DEFAULT_UPLOAD_BYTES_PER_SECOND)
