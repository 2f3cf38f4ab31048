"""What the checkpoints of a training say is charged, against their steps and the server's clock.

A node that charges more than has passed did not train; one that charges less trains more than its budget in seconds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from leaderboard.models import Run
from scheduler import storage
from scheduler.errors import InvalidMessageError
from scheduler.models import Checkpoint
from scheduler.uploads import MAX_CLOCK_SKEW_SECONDS
from trainer.accounting.budget import Budget
from trainer.protocol.files import STATE_FILE

STATE_BYTES = 32_000_000
"""A budget in seconds records 8 bytes for each step."""
MAX_SECONDS = 1e12
UNCHARGED_FACTOR, UNCHARGED_SECONDS = 1.25, 600.0
"""A lease may last so many times as long as it charges, and so much longer: evaluations, slow uploads."""
UNCHARGED_LEASES = 8
"""All leases of an owner in a run together may last longer by as much as so many, or by the budget if that is more."""
FLOPS_TOLERANCE = 0.01
"""By which the FLOPs of a step may be less than the server's: those of one micro-batch differ from those of rows."""


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


def find_charge_problem(run: Run) -> str:
    """Return a sentence if the checkpoints of a trained run charge too little, or do not say what they charge."""
    if run.job is None:
        return ""
    rows = list(run.job.checkpoints.uploaded().select_related("lease__node"))
    steps = count_budget_steps(run)
    if steps and rows and rows[-1].step > steps:
        return f"Disputed: its last checkpoint is of step {rows[-1].step}, and its budget is used up after {steps}."
    if silent := [row for row in rows if row.seconds is None]:
        return f"Disputed: the checkpoint of step {silent[0].step} does not say what it charges."
    budget = Budget.parse(run.budget)
    return find_uncharged_time(rows, budget.amount) if budget.kind == "seconds" else ""


def count_budget_steps(run: Run) -> int | None:
    """Return the steps of the run's budget by the server's figures, rounded up; None if it has none."""
    tokens, flops = run.entry.smoke.get("tokens_per_step"), run.graph and run.graph.summary.get("flops_per_token")
    budget = Budget.parse(run.budget)
    if budget.kind == "seconds" or (budget.kind != "steps" and not tokens) or (budget.kind == "flops" and not flops):
        return None
    return budget.steps(int(tokens or 0), (1 - FLOPS_TOLERANCE) * float(flops or 0) * float(tokens or 0))


def find_uncharged_time(rows: Sequence[Checkpoint], budget: float) -> str:
    """Return a sentence if a node charged much less than passed in a lease, or after its first checkpoint in it.

    Downloads and the preparation of a dataset, before its node reports the phase "running" or metrics, do not count.
    What the leases of one owner may leave uncharged has a limit together, so that many short ones train no more.
    """
    before, uncharged = 0.0, defaultdict[object, float](float)
    for _, group in groupby(rows, attrgetter("lease")):
        first, *others = group
        last, lease = (others or [first])[-1], first.lease
        spans = [(first.created_at, first.seconds or 0.0)]
        if lease is not None and lease.running_at is not None:
            spans.append((lease.running_at, before))
        name, owner = (lease.node.name, lease.node.owner_id or lease.node.name) if lease else ("A node", None)
        left = 0.0
        for start, charged_before in spans:
            charged, passed = (last.seconds or 0.0) - charged_before, (last.created_at - start).total_seconds()
            left = max(left, passed - UNCHARGED_FACTOR * charged)
            if left > UNCHARGED_SECONDS:
                return f"Disputed: {name} charged {charged:.0f} s of training while {passed:.0f} s passed."
        uncharged[owner] += left
        if uncharged[owner] > max(UNCHARGED_LEASES * UNCHARGED_SECONDS, budget):
            return f"Disputed: the leases of the owner of {name} left {uncharged[owner]:.0f} s uncharged."
        before = last.seconds or 0.0
    return ""
