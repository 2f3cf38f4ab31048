"""Nightly runs: `main` if it has new commits, else the ladder, else another seed of the baseline.

In a season without a baseline, the first night's `main` becomes it. Maintainers can choose another one in the admin.
A night that is due while one of an earlier night trains is late: it starts when that one has ended, with the `main` of
then. If `main` is broken, the baseline is trained instead, and main's commit gets a status.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from leaderboard import night_nodes, runs
from leaderboard.models import Entry, Night, Run, Season, Track
from leaderboard.run_states import RunError
from leaderboard.schedule import ladder
from leaderboard.schedule.due_times import get_night_date
from leaderboard.schedule.failures import isolate_track
from leaderboard.submissions import intake, repositories
from leaderboard.submissions.intake import CommitSummary, IntakeError
from leaderboard.submissions.repositories import RepositoryError
from scheduler import estimates, storage
from scheduler.models import SITE_ACTOR, Blob, Event, Job

logger = logging.getLogger(__name__)

BLOCKING_STATES = (Run.State.WAITING, Run.State.QUEUED, Run.State.TRAINING, Run.State.PAUSED)
STALLED_AFTER = timedelta(hours=24)
"""A run that has not got on for so long holds no later night back: its machine may never return, or never finish."""


@dataclass(frozen=True)
class MainHead:
    reading: CommitSummary | None
    problem: str
    """Why it cannot be trained; empty if it can."""
    sha: str = ""
    """Commit of a broken `main`; empty if it could not be fetched."""


def start_nightly_runs(now: datetime) -> list[Night]:
    """Start tonight's run on every nightly track, once for each local night; return the nights that this call started.

    A night that the site fails to start is due as before: `start_late_nights` tries again.
    """
    day, started = get_night_date(now), []
    tracks = [track for track in Track.objects.nightly() if not has_night(track, day, now)]
    head = read_main() if tracks else None
    for track in tracks:
        assert head is not None, "main was read for it"
        with isolate_track(track, f"Night of {day}"):
            started.append(start_night(track, day, head))
        if not track.nights.filter(date=day).exists():
            Night.objects.create(date=day, track=track, is_waiting=True, sentence="The site failed to start it.")
    return [night for night in started if night]


def start_late_nights(now: datetime) -> list[Night]:
    """Start the nights that wait, where nothing holds them back any more; return them.

    Of several nights of a track only the newest is trained: all of them would train the same commit.
    """
    started: list[Night | None] = []
    head = None
    for track in Track.objects.nightly().filter(nights__is_waiting=True).distinct():
        has_night(track, get_night_date(now), now)
        waiting = list(track.nights.filter(is_waiting=True).order_by("date"))
        if not waiting or get_unfinished_run(track):
            continue
        *older, newest = waiting
        head = head or read_main()
        with isolate_track(track, f"Night of {newest.date}"):
            started.append(start_night(track, newest.date, head, is_late=True))
            for night in older:
                sentence = f"An earlier run took its time: the night of {newest.date} trains the newest main instead."
                Night.objects.filter(pk=night.pk).update(is_waiting=False, sentence=sentence)
    return [night for night in started if night]


def has_night(track: Track, day: date, now: datetime) -> bool:
    """Return whether the track has a night of this date.

    Nights that begin in the future are of a clock that was ahead: the first takes the place of the missing one, others
    go.
    """
    has_one = track.nights.filter(date=day).exists()
    for night in track.nights.filter(date__gt=day, created_at__gt=now).order_by("date"):
        if has_one:
            night.delete()
        else:
            has_one = bool(Night.objects.filter(pk=night.pk).update(date=day))
    return has_one


def start_nightly_run(track: Track, now: datetime) -> Night | None:
    """Start this track's run of tonight; return None if it was started before."""
    return start_night(track, get_night_date(now), read_main())


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


def start_night(track: Track, day: date, head: MainHead, *, is_late: bool = False) -> Night | None:
    """Start a track's night and record it; return None if another process was first. `is_late`: it has waited."""
    track.season.refresh_from_db(fields=["baseline"])  # an earlier track's night may have pinned it
    entry, replaced = None, None
    has_new_main = head.reading is not None and has_moved(track, head.reading.sha)
    holding = get_unfinished_run(track) if has_new_main else None
    if holding and is_replaceable(holding, track):
        runs.cancel_run(holding, f"The night of {day} trains a newer main instead.", SITE_ACTOR)
        holding, replaced = None, holding
    if head.reading and has_new_main and not holding:
        try:
            entry = enter_main(track, day, head.reading)
        except IntakeError as error:
            head = MainHead(None, str(error), head.reading.sha)
    release = storage.store_release()
    with transaction.atomic():
        night = claim_night(track, day, head.reading.sha if head.reading else head.sha, is_late)
        if night is None:
            return None
        if holding:
            night.is_waiting = True
            night.sentence = f"Run {holding.pk} of an earlier night is still {holding.state}: it starts after that one."
            Event.record(SITE_ACTOR, holding, f"Still {holding.state} on the night of {day}, which starts after it.")
        else:
            if entry:
                pin_baseline(track.season, entry)
                train_main(night, entry, release)
                if replaced:
                    take_place(night, replaced)
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


def claim_night(track: Track, day: date, sha: str, is_late: bool) -> Night | None:
    """Return the row of a night that this process is to start; None if another one was first."""
    if is_late:
        is_ours = track.nights.filter(date=day, is_waiting=True).update(is_waiting=False, sha=sha)
        return track.nights.get(date=day) if is_ours else None
    night, created = Night.objects.get_or_create(date=day, track=track, defaults={"sha": sha})
    return night if created else None


def describe_missing_node(run: Run | None) -> str:
    """Return, where no node that is online could take the run, a sentence that says so."""
    if run is None or run.job is None or run.state != Run.State.QUEUED:
        return ""
    estimate = estimates.estimate_start(run.job, timezone.now())
    return "" if estimate.begins_at else f" {estimate.reason}"


def get_unfinished_run(track: Track) -> Run | None:
    """Return the nightly run that holds the track: within a day a node has begun it, sent a checkpoint, or could begin.

    Seeds of the baseline hold nothing back: they yield. Nor does a run that is held, or whose job has ended without it.
    """
    stalled_before = timezone.now() - STALLED_AFTER
    unfinished = Run.objects.filter(track=track, purpose=Run.Purpose.NIGHTLY, state__in=BLOCKING_STATES)
    for run in unfinished.select_related("job", "entry"):
        state, since = (run.job.state, run.job.state_since) if run.job else (Job.State.QUEUED, run.created_at)
        if run.job and state == Job.State.LEASED:
            since = max(since, run.job.checkpoints.aggregate(at=Max("created_at"))["at"] or since)
        if state in (Job.State.LEASED, Job.State.QUEUED) and since > stalled_before:
            return run
    return None


def is_replaceable(run: Run, track: Track) -> bool:
    """Return whether a newer main may take the place of a run: no node has begun it, and no ladder needs it."""
    has_begun = run.job is not None and run.job.attempts > 0
    return not has_begun and run.entry_id != track.season.baseline_id


def get_last_main_run(track: Track) -> Run | None:
    """Return the last run of `main` in the track's season."""
    runs_of_main = Run.objects.filter(track=track, season=track.season_id, purpose=Run.Purpose.NIGHTLY)
    return runs_of_main.select_related("entry", "job").order_by("-pk").first()


def has_moved(track: Track, sha: str) -> bool:
    """Whether `main` is another commit than the one that the track trained last in its season, or than the baseline."""
    run = get_last_main_run(track)
    last = run.entry if run else track.season.baseline
    return last is None or last.sha != sha


def pin_baseline(season: Season, main: Entry) -> None:
    """Make main the season's baseline if it has none."""
    if Season.objects.filter(pk=season.pk, baseline=None).update(baseline=main):
        season.baseline = main
        Event.record(SITE_ACTOR, season, f"Baseline pinned: {main}.")


def train_main(night: Night, entry: Entry, release: Blob) -> None:
    night.run = runs.make_run(entry, night.track, purpose=Run.Purpose.NIGHTLY)
    runs.queue_run(night.run, release=release)
    night.sentence = f"main has moved to {entry.sha[:8]}: it is trained with seed {night.run.seed}."


def take_place(night: Night, replaced: Run) -> None:
    """Let a night's run wait as long as the one that it replaces: jobs that age must not pass a night for ever."""
    assert night.run is not None
    night.sentence += f" Run {replaced.pk} of an earlier night, which no node had begun, gives way to it."
    if night.run.job and replaced.job:
        night.run.job.queued_at = replaced.job.queued_at
        night.run.job.save(update_fields=["queued_at"])


def train_baseline(night: Night, head: MainHead, release: Blob) -> None:
    """Give a night without a new `main` to its failed run, to the ladder, or to one more seed of the baseline."""
    why = f"main cannot be trained ({head.problem.rstrip('.')})" if head.problem else "main has not moved"
    track = night.track
    last = get_last_main_run(track)
    if last and not head.problem and retry_failed_run(last):
        night.run, night.sentence = last, f"{why}, and the infrastructure failed its run {last.pk}: it goes on."
    elif track.season.baseline is None:
        night.sentence = f"{why}, and {track.season} has no baseline yet: nothing is trained."
    elif track.season.baseline.state != Entry.State.APPROVED:
        night.sentence = f"{why}, and the baseline is {track.season.baseline.state}: a maintainer chooses another one."
    elif ladder.is_filling(track):
        progress = ladder.get_ladder_progress(track)
        night.sentence = f"{why}: the night goes to the ladder. {progress.done} of its {progress.wanted} runs are done."
    elif seed := ladder.get_unfinished_seed(track):
        night.run, night.sentence = seed, f"{why}: the night goes to seed {seed.seed} of the baseline, which goes on."
    else:
        night.run = ladder.queue_baseline_run(track, release)
        assert night.run is not None, "there is a baseline"
        night.sentence = f"{why}: the night goes to seed {night.run.seed} of the baseline."


def retry_failed_run(run: Run) -> bool:
    """Continue a run of main that infrastructure failed; return whether it goes on."""
    if run.state != Run.State.FAILED or run.cause != "infrastructure":
        return False
    try:
        runs.retry_run(run, actor=SITE_ACTOR)
    except RunError as error:
        logger.warning("Run %s of main is not retried: %s", run.pk, error)
        run.refresh_from_db()
        return False
    return True


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
