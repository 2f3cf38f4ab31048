"""Nightly runs: `main` if it has new commits, else another seed of the baseline.

In a season without a baseline, the first night's `main` becomes it. Maintainers can choose another one in the admin.
No run starts while one of an earlier night is unfinished. If `main` is broken, the baseline is trained instead, and
main's commit gets a status.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, date, datetime

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from leaderboard import night_nodes, runs
from leaderboard.models import Entry, Night, Run, Season, Track
from leaderboard.schedule import ladder
from leaderboard.submissions import intake, repositories
from leaderboard.submissions.intake import CommitSummary, IntakeError
from leaderboard.submissions.repositories import RepositoryError
from scheduler import estimates, storage
from scheduler.models import SITE_ACTOR, Blob, Event

logger = logging.getLogger(__name__)

BLOCKING_STATES = (Run.State.WAITING, Run.State.QUEUED, Run.State.TRAINING, Run.State.PAUSED)


@dataclass(frozen=True)
class MainHead:
    reading: CommitSummary | None
    problem: str
    """Why it cannot be trained; empty if it can."""
    sha: str = ""
    """Commit of a broken `main`; empty if it could not be fetched."""


def start_nightly_runs(now: datetime) -> list[Night]:
    """Start a run on every nightly track once per date (UTC); return the nights that this call started."""
    day = now.astimezone(UTC).date()
    tracks = [track for track in Track.objects.nightly() if not track.nights.filter(date=day).exists()]
    if not tracks:
        return []
    head = read_main()
    nights = [start_night(track, day, head) for track in tracks]
    return [night for night in nights if night]


def start_nightly_run(track: Track, now: datetime) -> Night | None:
    """Start this track's run of today (UTC); return None if it was started before."""
    return start_night(track, now.astimezone(UTC).date(), read_main())


def read_main() -> MainHead:
    """Fetch `main` and read its newest commit. A broken main raises no error."""
    try:
        return MainHead(intake.fetch_commit(settings.MAIN_REPOSITORY, settings.MAIN_BRANCH), "")
    except IntakeError as error:
        logger.warning("main cannot be trained tonight: %s", error)
        return MainHead(None, str(error), get_broken_sha())


def get_broken_sha() -> str:
    """Return the newest commit of a broken `main`; empty if it cannot be fetched."""
    try:
        source = repositories.open_mirror(settings.MAIN_REPOSITORY)
        source.fetch()
        return source.resolve_revision(settings.MAIN_BRANCH)
    except RepositoryError:
        return ""


def start_night(track: Track, day: date, head: MainHead) -> Night | None:
    """Start a track's night and record it; return None if another process was first."""
    entry = None
    occupied = get_unfinished_run(track)
    if not occupied and head.reading and has_moved(track, head.reading.sha):
        try:
            entry = enter_main(track, day, head.reading)
        except IntakeError as error:
            head = MainHead(None, str(error), head.reading.sha)
    release = storage.store_release()
    sha = head.reading.sha if head.reading else head.sha
    with transaction.atomic():
        night, created = Night.objects.get_or_create(date=day, track=track, defaults={"sha": sha})
        if not created:
            return None
        if occupied:
            record_skipped_night(night, occupied)
        else:
            if entry:
                pin_baseline(track.season, entry)
                train_main(night, entry, release)
            else:
                train_baseline(night, head, release)
            night.problem = head.problem[:300]
            night.save()
            night_nodes.update_night_needs(timezone.now())
            night.sentence = f"{night.sentence}{describe_missing_node(night.run)}"
        night.sentence = night.sentence[:500]
        night.save()
        Event.record(SITE_ACTOR, track, f"Night of {day}: {night.sentence}")
        return night


def describe_missing_node(run: Run | None) -> str:
    """Return, where no node that is online could take the run, a sentence that says so."""
    if run is None or run.job is None or run.state != Run.State.QUEUED:
        return ""
    estimate = estimates.estimate_start(run.job, timezone.now())
    return "" if estimate.begins_at else f" {estimate.reason}"


def get_unfinished_run(track: Track) -> Run | None:
    """Return the run of an earlier night that still holds the track."""
    night = track.nights.filter(run__state__in=BLOCKING_STATES).select_related("run").first()
    return night.run if night else None


def has_moved(track: Track, sha: str) -> bool:
    """Whether `main` is another commit than the one that the track trained last in its season, or than the baseline."""
    runs_of_main = Run.objects.filter(track=track, season=track.season_id, purpose=Run.Purpose.NIGHTLY)
    night = track.nights.filter(run__in=runs_of_main).select_related("run__entry").first()
    last = night.run.entry if night and night.run else track.season.baseline
    return last is None or last.sha != sha


def record_skipped_night(night: Night, occupied: Run) -> None:
    night.sentence = f"Run {occupied.pk} of an earlier night is still {occupied.state}: no second one starts."
    Event.record(SITE_ACTOR, occupied, f"Still {occupied.state} on the night of {night.date}, which it takes.")


def pin_baseline(season: Season, main: Entry) -> None:
    """Make main the season's baseline if it has none."""
    if Season.objects.filter(pk=season.pk, baseline=None).update(baseline=main):
        season.baseline = main
        Event.record(SITE_ACTOR, season, f"Baseline pinned: {main}.")


def train_main(night: Night, entry: Entry, release: Blob) -> None:
    night.run = runs.make_run(entry, night.track, purpose=Run.Purpose.NIGHTLY)
    runs.queue_run(night.run, release=release)
    night.sentence = f"main has moved to {entry.sha[:8]}: it is trained with seed {night.run.seed}."


def train_baseline(night: Night, head: MainHead, release: Blob) -> None:
    """Top up the ladder: one more seed of the pinned baseline at the track's whole budget."""
    why = f"main cannot be trained ({head.problem.rstrip('.')})" if head.problem else "main has not moved"
    track = night.track
    if track.season.baseline is None:
        night.sentence = f"{why}, and {track.season} has no baseline yet: nothing is trained."
        return
    night.run = ladder.queue_baseline_run(track, release)
    assert night.run is not None, "there is a baseline"
    night.sentence = f"{why}: the night goes to seed {night.run.seed} of the baseline."


def enter_main(track: Track, day: date, reading: CommitSummary) -> Entry:
    """Return main's approved entry for this commit. What maintainers merged needs no second approval."""
    entry = intake.store_entry(
        reading,
        get_main_architecture(track, reading),
        track,
        Entry.MAIN_VARIANT,  # not the entry that someone else made of this commit, with another configuration
        actor=SITE_ACTOR,
        kind=Entry.Kind.MAIN,
        title=f"{settings.MAIN_BRANCH}, {day:%-d %b}",
        hypothesis=reading.subject,
        author=reading.author,
    )
    intake.approve_entry(
        entry, reading.sha, None, message="Approved by the site: it is the head of main, which was reviewed."
    )
    return entry


def get_main_architecture(track: Track, reading: CommitSummary) -> str:
    """Return the architecture that stands for main: the baseline's while main has it, else its dict's first."""
    baseline = track.season.baseline
    if baseline and baseline.architecture in reading.architectures:
        return baseline.architecture
    return next(iter(reading.architectures))
