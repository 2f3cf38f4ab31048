"""Smoke tests of entries: a few minutes on a CPU that find most mistakes before anything trains on a GPU.

Meanwhile the entry is in the state `smoke`; afterwards it is `proposed` again, with the outcome on its row. An entry
that was approved before stays approved, and its runs wait for the smoke test to pass.
"""

from __future__ import annotations

from django.conf import settings
from django.db import transaction

from leaderboard import graphs, run_jobs, runs
from leaderboard.models import Entry, Track
from scheduler import matching, storage
from scheduler.models import SITE_ACTOR, Blob, Job
from scheduler.transitions import FINAL_STATES, cancel_job, transition
from trainer.accounting import peak_flops

OPEN_STATES = (Entry.State.PROPOSED, Entry.State.SMOKE, Entry.State.APPROVED)
SMOKE_KINDS = (Entry.Kind.ARCHITECTURE, Entry.Kind.OPEN)  # entries with an architecture that has not been reviewed


def is_running(entry: Entry) -> bool:
    return entry.smoke_job is not None and entry.smoke_job.state not in FINAL_STATES


def is_due(entry: Entry) -> bool:
    """Whether the entry needs a smoke test before it trains: it comes from a pull request and has had none."""
    return entry.pull_request_id is not None and entry.kind in SMOKE_KINDS and entry.smoke_job_id is None


def can_run_unapproved(entry: Entry) -> bool:
    """Whether the entry's code may run before a maintainer has reviewed it (SECURITY.md).

    `settings.SMOKE_UNAPPROVED` is "nobody", "anyone" or "known": only authors who have an account here, or whose code
    was approved before, and anyone on a track that approves anyone's graphs. GitHub vouches for the author's id; the
    name in a commit proves nothing. The test runs on trusted nodes, in the sandbox (`graphs.build_smoke_job`).
    """
    if entry.state == Entry.State.APPROVED or settings.SMOKE_UNAPPROVED == "anyone":
        return True
    if settings.SMOKE_UNAPPROVED != "known":
        return False
    if entry.track.approval == Track.Approval.ANYONE and entry.kind == Entry.Kind.ARCHITECTURE:
        return True
    author = entry.pull_request.author_id if entry.pull_request else None
    approved = Entry.objects.exclude(approved_at=None).filter(pull_request__author_id=author)
    return entry.requested_by_id is not None or (author is not None and approved.exists())


def queue_smoke_test(
    entry: Entry, *, actor: str = SITE_ACTOR, is_vouched: bool = False, release: Blob | None = None
) -> Job | None:
    """Queue a smoke test of the entry and return its job, or None if there is nothing to queue.

    There is nothing to queue while a smoke test is unfinished, for `main` and notebooks, for closed entries, and for
    code that may not run unapproved, unless a maintainer asked for exactly this commit (`is_vouched`).
    """
    if entry.bundle_id is None or entry.kind not in SMOKE_KINDS or not (is_vouched or can_run_unapproved(entry)):
        return None
    release = release or storage.store_release()
    with transaction.atomic():
        graphs.lock_season(entry.track.season_id)
        rows = Entry.objects.select_for_update(of=("self",), no_key=True).select_related("track__season", "smoke_job")
        entry = rows.get(pk=entry.pk)
        if is_running(entry) or entry.state not in OPEN_STATES:
            return None
        track = entry.track
        config = run_jobs.get_entry_configuration(entry, track)
        graph = graphs.queue_trace(entry, track, track.season, config, release)
        runs.request_baseline_graph(graph, release)
        transition(
            entry,
            Entry.State.SMOKE if entry.state == Entry.State.PROPOSED else entry.state,
            since=[entry.state],
            actor=actor,
            message=f"Smoke test of commit {entry.sha[:8]} queued.",
            smoke_job=graph.job,
            smoke={},
            smoke_sentence="",
        )
    return graph.job


def cancel_smoke_test(entry: Entry, reason: str, actor: str) -> None:
    """Cancel all jobs that trace the entry."""
    for graph in entry.graphs.filter(hash="", problem="").select_related("job"):
        cancel_job(graph.job, actor, reason)


def get_peak_flops(needs: matching.LabelNeeds) -> float | None:
    """Return the FLOP/s of the machines that labels such as `1xh100` or `2x3090` name."""
    for label in needs.names:
        if match := matching.MODEL_LABEL.fullmatch(label):
            name = match[2].upper()
            flops = peak_flops.lookup_peak_flops(name) or peak_flops.lookup_peak_flops(f"RTX {name}")
            if flops is not None:
                return flops * int(match[1])
    return None
