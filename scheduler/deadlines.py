"""Deadlines: when a node has to save a checkpoint, upload it and hand its job back.

Its owner's window closes, or the run has used the hours that its owner lends to one run. The job continues elsewhere.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import PurePosixPath

from django.conf import settings

from scheduler import node_slots
from scheduler.matching import NodeSlot
from scheduler.models import Job, Lease, Node
from trainer.accounting.training_size import estimate_checkpoint_bytes
from trainer.protocol.files import is_weights_file
from trainer.protocol.lease import PROGRESS_FACTOR

SAVE_SECONDS = 60.0
"""Seconds to write the last checkpoint. A guess."""
DEFAULT_BYTES_PER_SECOND = 1e6
"""Rate of a node whose network was not measured. A conservative guess."""
MAX_NOTICE_SECONDS = 3600.0
"""Longest time before a deadline at which a stop is requested, for slow networks."""
SLACK_SECONDS = 3600.0
"""Time besides the job's own, for environments, compilation and uploads. A guess."""
MAX_PREPARATION_SECONDS = 24 * 3600.0
"""Longest preparation of a dataset by an agent (`trainer.node.datasets`)."""
MAX_SLOWNESS = 10.0
"""A job with metrics may last up to this many times as long as its limit: metrics are what the node says."""
SILENT_CHECKPOINTS = 10
"""Times between two checkpoints without metrics, after which a job hangs."""


def find_stop_reason(lease: Lease, now: datetime) -> str:
    """Return why the node has to hand the job back now; empty while there is time."""
    node = lease.node
    if (now - lease.started_at).total_seconds() > get_longest_seconds(lease):
        return "It has run longer than its limit; the job goes on elsewhere."
    closes, spent = node_slots.get_seconds_left(node, now), None
    if node.max_hours is not None:
        spent = node.max_hours * node_slots.HOUR - (now - lease.started_at).total_seconds()
    left = min((seconds for seconds in (closes, spent) if seconds is not None), default=None)
    if left is None or left > MAX_NOTICE_SECONDS or left > estimate_notice_seconds(lease.job, node):
        return ""
    if left == closes:
        return "Its owner wants the machine back soon; the job goes on elsewhere."
    return f"Its owner lends {node.max_hours:g} hours to one run; the job goes on elsewhere."


def find_overrun(lease: Lease, now: datetime) -> str:
    """Return why a lease is lost whose heartbeats go on; empty if it is not."""
    lasted = (now - lease.started_at).total_seconds()
    if lasted > 2 * get_longest_seconds(lease):
        return f"{lease.node.name} went on for {lasted / 3600:.1f} hours, twice as long as the job may take."
    interval = lease.job.checkpoint_seconds
    if lease.phase != "running" or lease.metrics_at is None or not interval:
        return ""
    silent = (now - lease.metrics_at).total_seconds()
    if silent <= max(SILENT_CHECKPOINTS * interval, SLACK_SECONDS):
        return ""
    return f"{lease.node.name} has sent no metrics for {silent / 3600:.1f} hours."


def get_longest_seconds(lease: Lease) -> float:
    """Return how long a lease may last: the job's limit, and the time to download and prepare what it needs."""
    job, worked = lease.job, float(lease.job.limits["wall_seconds"])
    if lease.metrics_at is not None:
        elapsed = (lease.metrics_at - lease.started_at).total_seconds()
        worked = min(max(worked, PROGRESS_FACTOR * elapsed), MAX_SLOWNESS * worked)
    preparation = min(job.needs_disk_bytes / DEFAULT_BYTES_PER_SECOND, MAX_PREPARATION_SECONDS)
    return SLACK_SECONDS + preparation + worked


def ends_too_soon(job: Job, node: Node, node_slot: NodeSlot) -> bool:
    """Return whether the node would have to hand the job back before its first checkpoint. At most one query."""
    left = min(
        (seconds for seconds in (node_slot.seconds_left, node_slot.max_seconds) if seconds is not None), default=None
    )
    worked = min(job.checkpoint_seconds or job.expected_seconds, job.expected_seconds)
    if left is None or left > worked + MAX_NOTICE_SECONDS:
        return False
    return left <= worked + estimate_notice_seconds(job, node)


def estimate_notice_seconds(job: Job, node: Node) -> float:
    """Return how long before the deadline the node gets a stop request: for the heartbeat, the save and the upload."""
    notice = settings.LEASE_SECONDS / 2 + SAVE_SECONDS + estimate_upload_seconds(job, node)
    if node.max_hours is not None:
        notice = min(notice, node.max_hours * node_slots.HOUR / 4)  # most of a short loan is still for work
    return min(notice, MAX_NOTICE_SECONDS)


def estimate_upload_seconds(job: Job, node: Node) -> float:
    """Return how long the uploads at the end take, by the size of the last checkpoint. One query.

    Before the first one, the size from which the job's limits were computed: a large one is sent only every few hours.
    The next checkpoint, and a milestone that is pending: its weights are in bf16, half of the checkpoint's in fp32.
    """
    last = job.checkpoints.uploaded().order_by("-step").values_list("manifest", flat=True).first()
    speed = float(node.hardware.get("network_bytes_per_second") or DEFAULT_BYTES_PER_SECOND)
    if last is None:
        return estimate_checkpoint_bytes(job.max_file_bytes or 0) / speed
    files = last["files"]
    weights = [file for file in files if is_weights_file(PurePosixPath(file["path"]).name)]
    size = sum(int(file["size"]) for file in files) + sum(int(file["size"]) for file in weights) / 2
    return size / speed
