"""Making, queueing, repeating and cancelling runs. One way for contributors', nightly and ladder runs."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from leaderboard import trust
from leaderboard.models import Entry, Run, Season, Track
from scheduler import jobs, storage
from scheduler.models import Blob, Event, Job

SITE = "site"
SEEDS = 2**31
"""Seeds are drawn below this; small enough for every library's generator."""

SCORE_SECONDS = 120.0
"""Expected; only for the order of the queue."""
SCORE_WALL_SECONDS = 3600.0


class RunError(ValueError):
    """The run cannot be changed as asked; the message is a sentence for whoever asked."""


def draw_seed() -> int:
    """Return a seed that nobody could choose or foresee."""
    return secrets.randbelow(SEEDS)


def make_run(
    entry: Entry,
    track: Track,
    *,
    seed: int | None = None,
    budget: str = "",
    purpose: Run.Purpose = Run.Purpose.ENTRY,
    actor: str = SITE,
) -> Run:
    """Return the waiting run of an entry on a track; without a seed the server draws one, without a budget it has the
    track's."""
    with transaction.atomic():
        run, created = Run.objects.get_or_create(
            entry=entry,
            track=track,
            seed=draw_seed() if seed is None else seed,
            budget=budget or track.budget,
            defaults={"season": track.season, "purpose": purpose, "reason": "Waits for a maintainer's approval."},
        )
        if created:
            Event.record(actor, run, f"Run of {entry.title} on {track.name} with seed {run.seed}.")
    return run


def queue(run: Run, *, actor: str = SITE, release: Blob | None = None, priority: Job.Priority | None = None) -> bool:
    """Put a waiting run of an approved entry into the queue, once; return whether it is there now because of us.

    Without a priority it has that of its purpose. Until the season's dataset is prepared the run goes on waiting and
    says so (`queue_waiting` comes back to it).
    """
    entry = run.entry
    if entry.state != Entry.State.APPROVED:
        raise RunError(f"The entry is {entry.state}: only approved entries run.")
    if not run.season.is_prepared:
        Run.objects.filter(pk=run.pk, state=Run.State.WAITING).update(
            reason="Approved; waits until the season's dataset is prepared.", revision=F("revision") + 1
        )
        return False
    release = release or storage.release()
    with transaction.atomic():
        if not run.change(
            Run.State.QUEUED, since=[Run.State.WAITING], actor=actor, sentence="Queued for training.", reason=""
        ):
            return False
        job = train_job(run, release)
        run.job = Job.objects.create(**job if priority is None else {**job, "priority": priority})
        run.save(update_fields=["job"])
    return True


def queue_waiting(season: Season, *, actor: str = SITE) -> int:
    """Queue the approved runs that waited for the season's dataset; return how many."""
    waiting = Run.objects.with_entry().filter(season=season, state=Run.State.WAITING, entry__state=Entry.State.APPROVED)
    return sum(queue(run, actor=actor) for run in waiting.order_by("pk"))


def train_job(run: Run, release: Blob) -> dict[str, Any]:
    limits = run.track.training_limits(run.part)
    return {
        "kind": "train",
        "priority": priority(run),
        "impact": run.entry.impact,
        "expected_seconds": run.expected_seconds,
        "author": run.entry.author,
        "needs_labels": run.track.needs_labels,
        "needs_disk_bytes": limits.disk_bytes,
        "needs_sandbox": needs_sandbox(run),
        "release": release,
        "entry": run.entry.bundle,
        "limits": limits.model_dump(),
        **(trust.on_unrelated(run.entry) if run.purpose == Run.Purpose.CONFIRMATION else {}),
    }


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return one configuration of several: later ones win, table by table."""
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            below = result.get(name)
            result[name] = merged(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return result


def configuration(run: Run) -> dict[str, Any]:
    """Return what the node is told to train: the track's part, the entry's over it, then what the site alone sets."""
    site = {"arch": run.entry.architecture, "budget": run.budget, "seed": run.seed}
    return merged(run.track.config, run.entry.config, site)


def needs_sandbox(run: Run) -> bool:
    """Whether the code is a stranger's; `main` was reviewed, so a node without a sandbox may run it too."""
    return run.entry.kind != Entry.Kind.MAIN


def priority(run: Run) -> Job.Priority:
    if run.purpose == Run.Purpose.NIGHTLY:
        return Job.Priority.NIGHTLY
    if run.purpose == Run.Purpose.CONFIRMATION:
        return Job.Priority.CONFIRMATION
    if run.purpose == Run.Purpose.LADDER:
        return Job.Priority.LADDER
    asked_by = run.entry.requested_by
    return Job.Priority.MAINTAINER if asked_by and asked_by.is_staff else Job.Priority.COMMUNITY


def queue_score(run: Run) -> bool:
    """Give a trained run its score job, once; return whether this call did."""
    assert run.job is not None, "a trained run has a job"
    limits = run.track.training_limits().model_copy(update={"wall_seconds": SCORE_WALL_SECONDS})
    with transaction.atomic():
        job = Job.objects.create(
            kind="score",
            priority=Job.Priority.SCORE,
            expected_seconds=SCORE_SECONDS,
            author=run.entry.author,
            needs_trusted=True,
            needs_disk_bytes=limits.disk_bytes,
            needs_sandbox=needs_sandbox(run),
            release=run.job.release,
            entry=run.entry.bundle,
            limits=limits.model_dump(),
        )
        ours = Run.objects.unscored().filter(pk=run.pk).update(score_job=job, revision=F("revision") + 1)
        if ours:
            Event.record(SITE, run, "Queued for scoring on a trusted node.")
        else:
            job.delete()
    run.refresh_from_db(fields=["score_job", "revision"])
    return ours == 1


def retry(run: Run, *, actor: str) -> None:
    """Let a run that failed through no fault of its model go on, with the same seed, from its last checkpoint.

    A run that was trained and could not be scored is scored again. A model's own failure stands: it counts.
    """
    if run.state != Run.State.FAILED or run.cause != "infrastructure":
        raise RunError("Only a run that failed because of the infrastructure goes on with its seed.")
    assert run.job is not None, "a failed run had a job"
    if run.checkpoint_id is not None:
        with transaction.atomic():
            if run.change(
                Run.State.SCORING,
                since=[Run.State.FAILED],
                actor=actor,
                sentence="To be scored again.",
                reason="",
                cause="",
                score_job=None,
                finished_at=None,
            ):
                queue_score(run)
        return
    with transaction.atomic():
        if run.change(
            Run.State.QUEUED,
            since=[Run.State.FAILED],
            actor=actor,
            sentence=f"Queued again with seed {run.seed}; goes on from its last checkpoint.",
            reason="",
            cause="",
            finished_at=None,
        ):
            jobs.retry(run.job, actor)


def rerun(run: Run, *, actor: str) -> Run:
    """Return a new, queued run of the same entry on the same track, of the same budget, with a seed of its own."""
    purpose = Run.Purpose.LADDER if run.purpose == Run.Purpose.LADDER else Run.Purpose.ENTRY
    again = make_run(run.entry, run.track, budget=run.budget, purpose=purpose, actor=actor)
    queue(again, actor=actor)
    return again


def more_seeds(entry: Entry, count: int, *, actor: str) -> list[Run]:
    """Return `count` further, queued runs of an entry on its track, with seeds that the server draws."""
    with transaction.atomic():
        more = [make_run(entry, entry.track, actor=actor) for _ in range(count)]
        for run in more:
            queue(run, actor=actor)
    return more


def cancel(run: Run, reason: str, actor: str) -> None:
    """Stop a run that is not over. One that a node works on ends when the node has heard of it."""
    job = run.score_job if run.state == Run.State.SCORING else run.job
    if job is None:
        run.change(
            Run.State.CANCELLED,
            since=[Run.State.WAITING, Run.State.SCORING],
            actor=actor,
            sentence=f"Cancelled: {reason}",
            reason=reason[:500],
            finished_at=timezone.now(),
        )
        return
    jobs.cancel(job, actor, reason)
