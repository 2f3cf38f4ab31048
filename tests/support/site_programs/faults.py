"""Functions called inside the site by tests that make its parts fail or kill them."""

from __future__ import annotations

import hashlib
from typing import Any

from django.core.management import call_command
from django.db import DatabaseError
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from leaderboard.models import CurvePoint, Entry, OutboxMessage, Publication, Run, Season, Track
from leaderboard.publishing import publications
from scheduler import node_tokens, resumable_uploads, retention, storage
from scheduler.models import Blob, Checkpoint, Event, Job, Lease, LogChunk, Node
from scheduler.sponsors import contributions

FAST_TASKS = (
    *("process_due_messages", "process_due_long_messages", "announce_events", "store_configurations", "expire_leases"),
)


def create_site(nodes: int) -> list[str]:
    """Create a season, a track and nodes, the first two of them trusted; return the tokens of the nodes."""
    call_command("migrate", verbosity=0)
    call_command("install_schedule", verbosity=0)
    season = Season.objects.create(name="Test", corpus="python-docs", tokenizer="bpe:512", dataset_hash="d" * 64)
    Track.objects.create(
        slug="small", name="Small", season=season, budget="20steps", expected_seconds=10, is_default=True,
        is_traced=False,
    )  # fmt: skip
    every_second, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
    tasks = PeriodicTask.objects.filter(task__regex=f"({'|'.join(FAST_TASKS)})$")
    assert tasks.update(interval=every_second) == len(FAST_TASKS)
    tokens = [node_tokens.generate_token("node") for _ in range(nodes)]
    for number, token in enumerate(tokens):
        Node.objects.create(name=f"node-{number}", token_hash=node_tokens.hash_token(token), trusted=number < 2)
    return tokens


def publish_finished() -> int:
    """Publish every finished run, as a maintainer would; return how many have been requested so far, -1 if unknown."""
    try:
        for run in Run.objects.filter(state=Run.State.FINISHED, publications=None):
            publications.publish_run(run, "A maintainer asked for it.")
        return Publication.objects.count()
    except DatabaseError:
        return -1


def expire_claims() -> None:
    """Let the claims of dead processes expire, and all retries be due. Call it while no worker runs."""
    due = {"claimed_until": None, "not_before": timezone.now()}
    OutboxMessage.objects.filter(state="claimed").update(state="pending", **due)
    OutboxMessage.objects.filter(state="pending").update(**due)


def count_unfinished() -> dict[str, int]:
    """Return how much is still to be done, by kind."""
    return {
        "runs": Run.objects.exclude(state__in=(Run.State.FINISHED, Run.State.FAILED, Run.State.CANCELLED)).count(),
        "jobs": Job.objects.exclude(state__in=(Job.State.DONE, Job.State.FAILED, Job.State.CANCELLED)).count(),
        "outbox": OutboxMessage.objects.exclude(state__in=("done", "failed")).count(),
        "unpublished": Run.objects.filter(state=Run.State.FINISHED, publications=None).count(),
    }


def read_site() -> dict[str, Any]:
    """Return everything that the oracle compares, after the hourly clean-up."""
    retention.delete_expired()
    credited = contributions.sum_leases_by_node(Lease.objects.all())
    return {
        "entries": list(Entry.objects.order_by("pk").values("id", "sha", "state")),
        "runs": list(
            Run.objects.order_by("pk").values("id", "entry__sha", "state", "reason", "job", "score_job", "step")
        ),
        "jobs": list(Job.objects.order_by("pk").values("id", "kind", "state", "reason", "attempts")),
        "leases": list(
            Lease.objects.order_by("pk").values(
                *("id", "job", "node", "state", "outcome", "seconds", "log_received", "machine_fault")
            )
        ),
        "credited": {node: given.gpu_seconds + given.cpu_seconds for node, given in credited.items()},
        "points": list(CurvePoint.objects.order_by("run", "step").values_list("run", "series", "step", "loss")),
        "checkpoints": list(Checkpoint.objects.order_by("job", "step").values_list("job", "step")),
        "logs": [
            (chunk.lease_id, chunk.offset, len(chunk.text.encode()))
            for chunk in LogChunk.objects.order_by("lease", "offset")
        ],
        "scored": list(
            Event.objects.filter(target_kind="run", sentence__startswith="Scored on").values_list("target_id")
        ),
        "outbox": list(OutboxMessage.objects.exclude(state="done").values_list("key", "state", "problem")),
        "publications": list(Publication.objects.values_list("run", "commit", "repository")),
        "damaged": [blob.sha256 for blob in Blob.objects.all() if not is_intact(blob)],
        "partials": resumable_uploads.list_leases_with_partials(),
    }


def is_intact(blob: Blob) -> bool:
    try:
        return hashlib.sha256(storage.read_blob(blob)).hexdigest() == blob.sha256
    except FileNotFoundError:
        return False
