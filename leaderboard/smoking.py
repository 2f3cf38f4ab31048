"""Smoke runs: a few minutes on a CPU that find most mistakes, before anything trains on a GPU.

The entry waits in the state `smoke` meanwhile and is `proposed` again afterwards, with what was found on its row. One
that was approved before stays so, and its runs wait for the smoke run to pass.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import transaction

from leaderboard import runs
from leaderboard.models import Entry
from scheduler import jobs, storage
from scheduler.models import Blob, Event, Job
from trainer import wire

EXPECTED_SECONDS = 90.0
LIMITS = wire.Limits(wall_seconds=900, memory_bytes=4 * 2**30, disk_bytes=2**30, processes=64)
OPEN = (Entry.State.PROPOSED, Entry.State.SMOKE, Entry.State.APPROVED)


def under_way(entry: Entry) -> bool:
    """Whether its smoke run has been asked for and is not over."""
    return entry.smoke_job is not None and entry.smoke_job.state not in jobs.OVER


def may_begin(entry: Entry) -> bool:
    """Whether the entry's code may run before a maintainer has looked at it (SECURITY.md).

    The setting: "nobody" trusts only what was approved, "known" also whoever is signed in, or has had an entry
    approved in the same repository before, "anyone" everybody.
    """
    if entry.state == Entry.State.APPROVED or settings.SMOKE_UNAPPROVED == "anyone":
        return True
    return settings.SMOKE_UNAPPROVED == "known" and (entry.requested_by_id is not None or is_known(entry))


def is_known(entry: Entry) -> bool:
    """Whether GitHub vouches that the author is one whose code was approved before. A name in a commit is no proof."""
    author = entry.pull_request.author_id if entry.pull_request else None
    approved = Entry.objects.exclude(approved_at=None).filter(pull_request__author_id=author)
    return author is not None and approved.exists()


def begin(entry: Entry, *, actor: str = runs.SITE, vouched: bool = False) -> Job | None:
    """Queue a smoke run of the entry and return its job; None where there is none to be.

    There is none while one is under way (its job is `entry.smoke_job`), for `main`, for an entry that is closed or has
    nothing to smoke, and for code that may not run unlooked at (`may_begin`) and is not `vouched` for: a maintainer
    asks for exactly this commit.
    """
    if entry.bundle_id is None or entry.kind in (Entry.Kind.MAIN, Entry.Kind.NOTEBOOK):
        return None
    if not (vouched or may_begin(entry)):
        return None
    release = storage.release()
    with transaction.atomic():
        entry = Entry.objects.select_for_update(of=("self",)).select_related("track", "smoke_job").get(pk=entry.pk)
        if under_way(entry) or entry.state not in OPEN:
            return None
        job = Job.objects.create(**smoke_job(entry, release))
        Entry.objects.filter(pk=entry.pk, state=Entry.State.PROPOSED).update(state=Entry.State.SMOKE)
        Entry.objects.filter(pk=entry.pk).update(smoke_job=job, smoke={}, smoke_sentence="")
        Event.record(actor, entry, f"Smoke run of commit {entry.sha[:8]} queued.")
    return job


def smoke_job(entry: Entry, release: Blob) -> dict[str, Any]:
    """Return the job. What nobody has approved runs only where a maintainer trusts the node, and its sandbox."""
    return {
        "kind": "smoke",
        "priority": Job.Priority.SCORE,  # short, and somebody waits for it
        "impact": entry.impact,
        "expected_seconds": EXPECTED_SECONDS,
        "author": entry.author,
        "needs_sandbox": True,
        "needs_trusted": entry.state != Entry.State.APPROVED,
        "track": entry.track.slug,
        "from_core": runs.is_core(entry),
        "max_attempts": 3,
        "needs_memory_bytes": LIMITS.memory_bytes,
        "needs_disk_bytes": LIMITS.disk_bytes,
        "release": release,
        "entry": entry.bundle,
        "limits": LIMITS.model_dump(),
    }
