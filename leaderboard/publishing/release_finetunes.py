"""Fine-tunes of releases: a track can follow another one, whose every new release then starts one run.

The run is a row with a unique release before anything is queued, so each release starts one however often this runs.
"""

from __future__ import annotations

import logging

from django.db import transaction
from django.db.models import Q

from leaderboard import initial_weights, runs
from leaderboard.models import Publication, Run, Track
from leaderboard.models.publications import FINAL
from leaderboard.run_states import RunError
from scheduler.models import SITE_ACTOR, Event

logger = logging.getLogger(__name__)


def start_finetunes() -> int:
    """Start a run for each new release that a track follows; return how many were queued. Idempotent."""
    followers = Track.objects.exclude(followed_track=None).filter(season__active=True).select_related("followed_track")
    for track in followers:
        for release in list_new_releases(track):
            make_finetune(track, release)
    waiting = Run.objects.with_entry().filter(purpose=Run.Purpose.FINETUNE, state=Run.State.WAITING).order_by("pk")
    return sum(queue_finetune(run) for run in waiting)


def list_new_releases(track: Track) -> list[Publication]:
    """Return the releases since the track began to follow that have no run on it, the first one first.

    The last release of a run counts from its end, since it may be published later. Ladder runs and trials do not count.
    """
    followed, since = track.followed_track, track.follows_since
    assert followed is not None
    is_new = Q(is_release=True, created_at__gte=since)
    if followed.releases:
        is_new |= Q(name=FINAL, run__finished_at__gte=since)
    whole = Publication.objects.filter(run__track=followed, run__budget=followed.budget)
    new = whole.filter(is_new).exclude(run__purpose=Run.Purpose.LADDER).exclude(finetunes__track=track)
    return list(new.select_related("run__entry", "run__track", "run__checkpoint").order_by("created_at", "pk"))


def make_finetune(track: Track, release: Publication) -> Run | None:
    """Create the waiting run of a release, once. None: it exists, or nothing can start from the release yet."""
    start = release.run
    try:
        checkpoint = None if release.is_final else initial_weights.get_checkpoint_at(start, release.step)
    except ValueError as error:
        logger.warning("No fine-tune of %s on %s: %s", release, track, error)
        return None
    if refusal := start.explain_start_refusal(checkpoint):
        logger.info("No fine-tune of %s on %s yet: %s", release, track, refusal)
        return None
    fields = {
        "entry": start.entry,
        "season": track.season,
        "seed": runs.draw_seed(),
        "budget": track.budget,
        "purpose": Run.Purpose.FINETUNE,
        "start_run": start,
        "start_checkpoint": checkpoint,
    }
    with transaction.atomic():
        run, is_new = Run.objects.get_or_create(track=track, release=release, defaults=fields)
        if is_new:
            Event.record(SITE_ACTOR, run, f"Fine-tunes {release.percent} % of run {start.pk} on {track.name}.")
    return run if is_new else None


def queue_finetune(run: Run) -> bool:
    """Queue a waiting run; return whether this call did. Fails it if its entry was withdrawn, for example."""
    try:
        return runs.queue_run(run)
    except RunError as error:
        runs.fail_waiting_run(run, "model", str(error))
        return False


def list_finetunes(track: Track) -> list[Run]:
    """Return the runs that fine-tune releases on this track, the newest first."""
    if track.followed_track_id is None:
        return []
    found = Run.objects.filter(track=track, purpose=Run.Purpose.FINETUNE)
    return list(found.with_entry().select_related("release__run").order_by("-pk")[:20])
