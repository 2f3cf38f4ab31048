"""What the checkpoints of a training say is charged, against their steps and the server's clock.

A node that charges more than has passed did not train; one that charges less trains more than its budget in seconds.
"""

from __future__ import annotations

import json

from leaderboard.models import Run
from scheduler import storage
from scheduler.errors import InvalidMessageError
from scheduler.models import Checkpoint, Lease
from scheduler.uploads import MAX_CLOCK_SKEW_SECONDS
from trainer.accounting.budget import Budget
from trainer.protocol.files import STATE_FILE

STATE_BYTES = 32_000_000
"""A budget in seconds records 8 bytes for each step."""
MAX_SECONDS = 1e12
UNCHARGED_FACTOR, UNCHARGED_SECONDS = 2.0, 600.0
"""A lease may last so many times as long as it charges, and so much longer: evaluations, slow uploads."""


def record_charged_time(checkpoint: Checkpoint) -> None:
    """Store what a new checkpoint says is charged. Raise InvalidMessageError for what cannot be.

    One whose state is no JSON is stored: no run resumes from it, and no replay agrees with it.
    """
    spent = read_spent(checkpoint)
    steps, seconds = spent.get("steps"), spent.get("seconds")
    if not spent:
        return
    if steps != checkpoint.step:
        raise InvalidMessageError(f"The checkpoint of step {checkpoint.step} charges {steps} steps.")
    earlier = checkpoint.job.checkpoints.uploaded().filter(step__lt=checkpoint.step)
    last, base = earlier.last(), earlier.exclude(lease=checkpoint.lease_id).last()
    first = (last.seconds or 0.0) if last else 0.0
    if not isinstance(seconds, int | float) or not first <= seconds < MAX_SECONDS:
        raise InvalidMessageError(f"The checkpoint of step {checkpoint.step} charges an impossible time.")
    if checkpoint.lease is not None and (base is None or base.seconds is not None):
        passed = (checkpoint.created_at - checkpoint.lease.started_at).total_seconds()
        charged = seconds - ((base.seconds or 0.0) if base else 0.0)
        if charged > max(passed, 0.0) + MAX_CLOCK_SKEW_SECONDS:
            raise InvalidMessageError(f"The node charges {charged:.0f} s of training, and {passed:.0f} s have passed.")
    checkpoint.seconds = seconds
    checkpoint.save(update_fields=["seconds"])


def read_spent(checkpoint: Checkpoint) -> dict[str, object]:
    """Return the used budget in a checkpoint's state; empty if it is no JSON. Raise InvalidMessageError if huge."""
    hashes = [file["sha256"] for file in checkpoint.manifest["files"] if file["path"] == STATE_FILE]
    blob = checkpoint.blobs.filter(pk__in=hashes).first()
    if blob is not None and blob.size > STATE_BYTES:
        raise InvalidMessageError(f"The state of a checkpoint has {blob.size:,} bytes: at most {STATE_BYTES:,}.")
    try:
        state = json.loads(storage.read_blob(blob)) if blob else {}
    except (ValueError, RecursionError):
        return {}
    spent = state.get("spent") if isinstance(state, dict) else None
    return spent if isinstance(spent, dict) else {}


def find_uncharged_time(run: Run) -> str:
    """Return a sentence if a node of a run with a budget in seconds charged much less than has passed; else empty."""
    if run.job is None or Budget.parse(run.budget).kind != "seconds":
        return ""
    for lease in Lease.objects.filter(job=run.job).select_related("node"):
        rows = list(run.job.checkpoints.uploaded().filter(lease=lease, seconds__isnull=False))
        if len(rows) < 2:
            continue
        charged = (rows[-1].seconds or 0.0) - (rows[0].seconds or 0.0)
        passed = (rows[-1].created_at - rows[0].created_at).total_seconds()
        if passed > UNCHARGED_FACTOR * charged + UNCHARGED_SECONDS:
            return f"Disputed: {lease.node.name} charged {charged:.0f} s of training while {passed:.0f} s passed."
    return ""
