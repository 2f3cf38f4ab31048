"""What the next night needs from an operator: for `manage.py check_night`, its page in the admin and the calendar.

A check is one short function in `CHECKS`. It reads rows, files and settings, and changes nothing. Full disks, failing
nodes and silent services are alerts (`leaderboard.monitoring.alerts`); sizes and limits are on the track's admin page.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from celery import current_app
from django.conf import settings
from django.core.files.storage import default_storage
from django.db.models import Max
from django_celery_beat.models import PeriodicTask
from kombu.exceptions import OperationalError

from leaderboard.models import Entry, SeasonFile, Track
from leaderboard.schedule import calendar, ladder, nightly
from leaderboard.schedule.planned_night import PlannedNight
from leaderboard.schedule.scorers import list_scorer_times
from scheduler import estimates, node_slots
from scheduler.matching import describe_needs
from scheduler.models import Node

BEAT_SILENCE = timedelta(minutes=10)
"""Beat writes the times of its tasks every three minutes."""
PING_SECONDS = 1.0
MAX_LADDER_DAYS = 90


class CheckState(StrEnum):
    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "cannot tell"


OK, MISSING, UNKNOWN = CheckState
Finding = tuple[CheckState, str]
"""The state and, for an operator, the result and its remedy."""


@dataclass(frozen=True)
class NightCheck:
    name: str
    state: CheckState
    advice: str
    is_required: bool
    """Whether the night fails without it."""

    @property
    def fails_night(self) -> bool:
        return self.is_required and self.state == MISSING

    @property
    def label(self) -> str:
        """The state; a missing part without which the night is trained, but incomplete, is marked as optional."""
        return "missing (optional)" if self.state == MISSING and not self.is_required else str(self.state)


def check_next_night(track: Track, now: datetime) -> list[NightCheck]:
    """Return all checks of the track's next night."""
    night = PlannedNight(track, now, calendar.get_next_nightly(now), estimates.QueueEstimates(now).slots)
    return [NightCheck(name, *check(night), is_required) for name, check, is_required in CHECKS]


def list_failing_checks(night: PlannedNight) -> list[NightCheck]:
    """Return the checks because of which the night would fail. They make no request: it is for public pages."""
    required = [(name, check) for name, check, is_required in CHECKS if is_required and check is not check_worker]
    return [found for name, check in required if (found := NightCheck(name, *check(night), True)).fails_night]


def format_time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%-d %b, %H:%M} UTC"


def format_hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"


# --- schedule and season ---------------------------------------------------------------------------------------------


def check_schedule(night: PlannedNight) -> Finding:
    if not night.track.nightly:
        return MISSING, "The track has no nightly run. Mark it as nightly in the admin."
    if not night.track.season.active:
        return MISSING, f"{night.track.season} is not active. Activate it in the admin, or move the track."
    if night.due_at is None:
        return MISSING, "No nightly run is scheduled. Run manage.py install_schedule; enable the task in the admin."
    run = nightly.get_unfinished_run(night.track)
    after = f" It starts when run {run.pk} of an earlier night, which is {run.state}, has ended." if run else ""
    return OK, f"Due {format_time(night.due_at)}.{after}"


def check_beat(night: PlannedNight) -> Finding:
    last = get_last_beat()
    if last is not None and last - night.now > BEAT_SILENCE:
        return MISSING, (
            f"A periodic task has started {format_time(last)}, in the future: the clock was ahead, and no task starts "
            "until then. Run manage.py check_beat, which corrects the times; start beat again."
        )
    if last is None or night.now - last > BEAT_SILENCE:
        since = f"since {format_time(last)}" if last else "yet"
        return MISSING, f"No periodic task has started {since}. Start beat and a worker, and wait 3 minutes."
    return OK, f"The last periodic task started {format_time(last)}."


def get_last_beat() -> datetime | None:
    """Return when Celery beat last started a task."""
    last: datetime | None = PeriodicTask.objects.filter(enabled=True).aggregate(last=Max("last_run_at"))["last"]
    return last


def check_worker(night: PlannedNight) -> Finding:
    """Check that a worker answers: beat sends tasks without one, too."""
    try:
        with current_app.connection_for_write() as connection:
            answers = current_app.control.ping(timeout=PING_SECONDS, connection=connection)
    except (OSError, OperationalError) as error:
        return MISSING, f"Redis does not answer ({error}). Start it, or correct REDIS_URL."
    if not answers:
        return MISSING, "No worker answers. Start `celery -A dailytrain worker`."
    return OK, f"{len(answers)} worker{'' if len(answers) == 1 else 's'} answered."


def check_season(night: PlannedNight) -> Finding:
    season = night.track.season
    store = f"Run manage.py prepare_season --season '{season}'"
    files = season.files.filter(kind=SeasonFile.Kind.DATASET).select_related("blob")
    if not season.is_prepared:
        return MISSING, f"The dataset of {season} is not prepared. {store}."
    if not files:
        return UNKNOWN, f"Each node prepares {season.corpus} for itself. {store} to store it once."
    if not season.is_stored:
        return MISSING, f"The storage has only a part of {season}, which no node downloads. {store} to continue."
    if not settings.S3_BUCKET and (lost := [row.path for row in files if not default_storage.exists(row.blob.name)]):
        return MISSING, f"The storage lacks {len(lost)} files of {season}, first {lost[0]}. Restore them."
    return OK, f"{season}: dataset {season.dataset_hash[:12]}, {len(files)} files."


def check_baseline(night: PlannedNight) -> Finding:
    season = night.track.season
    if not night.track.ladder:
        return MISSING, "The track has no ladder, so no multipliers and no records. Set it in the admin."
    if season.baseline is None:
        return MISSING, f"{season} has no baseline. The first night's main becomes it."
    if season.baseline.state != Entry.State.APPROVED:
        return MISSING, f"The baseline of {season} is {season.baseline.state}. Choose or approve one in the admin."
    return OK, f"The baseline of {season} is {season.baseline.title}."


# --- nodes -----------------------------------------------------------------------------------------------------------


def check_node(night: PlannedNight) -> Finding:
    """Check that one fitting node is online, and lent long enough from the night's start on."""
    needs = describe_needs(night.training)
    if not night.slots:
        return MISSING, f"No node is online; the night needs one {needs}. Lend one, or run manage.py join_token."
    if not night.trainers:
        lacks = night.describe_obstacles(night.training)
        return MISSING, f"No online node fits; the night needs one {needs}. Missing is one {lacks}."
    due, needed = night.due_at or night.now, night.track.expected_seconds
    nodes = Node.objects.filter(pk__in={slot.node_slot.node for slot in night.trainers}).prefetch_related("windows")
    if (longest := max(get_lent_seconds(node, due) for node in nodes)) < needed:
        return MISSING, (
            f"From {format_time(due)} a fitting node is lent for {format_hours(longest)} at most, and the "
            f"night takes {format_hours(needed)}. Extend its hours, or its longest run."
        )
    return OK, f"{len(nodes)} online {needs}, lent for the {format_hours(needed)} that the night takes."


def get_lent_seconds(node: Node, at: datetime) -> float:
    """Return how long a node may work on one run from a moment on."""
    left = node_slots.get_seconds_left(node, at)
    return min(math.inf if left is None else left, math.inf if node.max_hours is None else node.max_hours * 3600)


def check_ladder_time(night: PlannedNight) -> Finding:
    """Compare what the ladder lacks with the hours that the fitting cards have besides a night on each day."""
    track, cards = night.track, len(night.trainers)
    if not track.ladder or not cards:
        return UNKNOWN, "The track has no ladder, or no fitting node is online."
    rungs = track.rungs()
    lacking = track.expected_seconds * sum(rungs[budget] for budget in ladder.list_missing_rungs(track))
    free = 86_400 * cards - track.expected_seconds
    text = f"The ladder lacks {format_hours(lacking)} of training; the cards online have {format_hours(free)} a day"
    if lacking > MAX_LADDER_DAYS * free:
        return MISSING, f"{text} besides a night on each. Lend another card, or take the longest rung away."
    return OK, f"{text} besides the nights."


def check_scorer(night: PlannedNight) -> Finding:
    needs = describe_needs(night.scoring)
    if night.find_fitting(night.scoring):
        return OK, f"A node {needs} is online."
    if not any(slot.node_slot.trusted for slot in night.slots):
        return MISSING, (
            f"No trusted node is online; runs need one {needs}. Run manage.py join_token --trusted, and on that "
            f"machine: dailytrain node --server {settings.SITE_URL} --token TOKEN"
        )
    lacks = night.describe_obstacles(night.scoring)
    return MISSING, f"No trusted node fits; runs need one {needs}. Missing is one {lacks}."


def check_scoring_time(night: PlannedNight) -> Finding:
    """Check every scorer that may get the job: the queue does not choose the fastest."""
    times, limit = list_scorer_times(night), float(night.score_job.limits["wall_seconds"])
    fitting = [time for time in times if time.is_fitting]
    limit_text = f"The limit is {format_hours(limit)}."
    if slow := [time for time in fitting or times if time.seconds is not None and time.seconds > limit]:
        found = ", ".join(f"{time} {format_hours(time.seconds or 0)}" for time in slow)
        return MISSING, f"Too slow to score the night: {found}. {limit_text} Trust a node with a faster GPU instead."
    if not fitting:
        return UNKNOWN, f"No trusted node that fits is online, or the size of the model is not known. {limit_text}"
    if unclear := [str(time) for time in fitting if time.seconds is None]:
        return UNKNOWN, f"The speed of {', '.join(unclear)} is not known. {limit_text}"
    return OK, f"Scoring takes about {format_hours(max(time.seconds or 0 for time in fitting))}, computed. {limit_text}"


def check_suite(night: PlannedNight) -> Finding:
    season, suite = night.track.season, night.track.suite
    if not suite:
        return MISSING, "The track has no lm-eval tasks. Add a suite in the admin."
    if lacking := season.list_missing_tasks(suite):
        lacks = f"{season} has no evaluation data of {', '.join(lacking)}"
        return MISSING, f"{lacks}. Run manage.py prepare_season --season '{season}', which stores it for scorers."
    return OK, f"{season} has the data of {', '.join(suite)}."


def check_key(night: PlannedNight) -> Finding:
    if Path(settings.SIGNING_KEY).is_file() or not Node.objects.exists():
        return OK, "The key that signs orders exists, or is created when the first node joins."
    return MISSING, f"{settings.SIGNING_KEY} does not exist, and nodes know it. Restore it from a backup."


CHECKS: tuple[tuple[str, Callable[[PlannedNight], Finding], bool], ...] = (
    # name, function, whether the night fails without it
    ("Schedule", check_schedule, True),
    ("Background work", check_beat, True),
    ("Worker", check_worker, True),
    ("Season", check_season, True),
    ("Baseline and ladder", check_baseline, False),
    ("Node", check_node, True),
    ("Time for the ladder", check_ladder_time, False),
    ("Trusted scorer", check_scorer, True),
    ("Scoring time", check_scoring_time, True),
    ("Evaluation data", check_suite, False),
    ("Signing key", check_key, True),
)
