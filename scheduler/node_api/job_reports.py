"""Metrics and logs of running jobs. Repeats change nothing: metrics have sequence numbers, logs have offsets."""

from __future__ import annotations

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Coalesce
from django.utils import timezone

from scheduler.errors import LeaseEndedError, OutOfOrderError
from scheduler.job_kinds import get_job_kind
from scheduler.models import Lease, LogChunk
from trainer import protocol

MAX_LOG_BYTES = 8 * 2**20
"""Stored of one lease's output. The rest is counted and dropped."""


@transaction.atomic
def store_metrics(lease: Lease, message: protocol.MetricsBatch) -> protocol.Acknowledgment:
    """Store a batch if it is the next one. Raises LeaseEndedError or OutOfOrderError."""
    now = timezone.now()
    progress = {"metrics_at": now, "running_at": Coalesce("running_at", now)} if message.rows else {}
    expected = Lease.objects.active(lease).filter(metrics_received=message.sequence - 1)
    if expected.update(metrics_received=message.sequence, **progress):
        get_job_kind(lease.job).handle_metrics(lease.job, message.rows)
        return protocol.Acknowledgment(received=message.sequence)
    check_lease_active(lease)
    if message.sequence > lease.metrics_received:
        raise OutOfOrderError(f"Expected batch {lease.metrics_received + 1}, got {message.sequence}.")
    return protocol.Acknowledgment(received=lease.metrics_received)


@transaction.atomic
def store_log(lease: Lease, message: protocol.LogChunk) -> protocol.Acknowledgment:
    """Store the new part of a chunk of output. Raises LeaseEndedError or OutOfOrderError."""
    lease.refresh_from_db(fields=["state", "log_received"])
    content = message.text.encode("utf-8", "replace")
    end = message.offset + len(content)
    received = lease.log_received
    if message.offset > received:
        check_lease_active(lease)
        raise OutOfOrderError(f"The log has {received:,} bytes, and this chunk starts at {message.offset:,}.")
    if end <= received:
        check_lease_active(lease)
        return protocol.Acknowledgment(received=received)
    is_stored = (
        Lease.objects.active(lease)
        .filter(log_received=received)
        .update(log_received=F("log_received") + end - received)
    )
    if not is_stored:
        check_lease_active(lease)
        return protocol.Acknowledgment(received=lease.log_received)
    store_log_chunk(lease, received, content[received - message.offset :].decode("utf-8", "replace"))
    return protocol.Acknowledgment(received=end)


def store_log_chunk(lease: Lease, offset: int, text: str) -> None:
    """Store the text up to `MAX_LOG_BYTES`, then a notice."""
    if offset < MAX_LOG_BYTES:
        is_full = offset + len(text.encode()) >= MAX_LOG_BYTES
        notice = f"\n[the log is longer than {MAX_LOG_BYTES // 2**20} MB; the rest was dropped]\n" if is_full else ""
        LogChunk.objects.create(lease=lease, offset=offset, text=text + notice)


def check_lease_active(lease: Lease) -> None:
    """Raises LeaseEndedError."""
    lease.refresh_from_db()
    if lease.state != Lease.State.ACTIVE:
        raise LeaseEndedError
