"""All aboard, the morning post: what last night brought on every nightly track."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from django.conf import settings
from django.contrib.auth.models import User
from django.urls import reverse

from leaderboard import formatting
from leaderboard.charts.curve_svg import write_curve_csv
from leaderboard.charts.images import draw_run_card
from leaderboard.models import Night, Run, Track
from leaderboard.notifications.message import Attachment, Message
from leaderboard.rankings import explanations
from leaderboard.rankings.standings_store import refresh_standings

LABEL = "All aboard"
HINT = "Every morning: last night's result, its curve as a picture and its numbers as CSV."

DAY = timedelta(days=1)


def can_choose(user: User) -> bool:
    return True


def is_relevant(user: User, about: str) -> bool:
    return True


def compose(about: str) -> Message | None:
    """`about`: the day, as 2026-11-21. Tells what has arrived in the 24 hours before the post and what is under way."""
    day = date.fromisoformat(about)
    tracks = list(Track.objects.nightly().order_by("position", "slug"))
    nights = [night for track in tracks if (night := last_night(track, day))]
    if not nights:
        return None
    arrived = [run for track in tracks if (run := arrival(track, day))]
    return Message(
        title=f"All aboard: {day:%-d %b}",
        lines=tuple(line for night in nights for line in lines(night, next_to(night, arrived))),
        url=settings.SITE_URL + (arrived[0].get_absolute_url() if arrived else reverse("calendar")),
        files=tuple(file for run in arrived[:1] for file in curve(run)),
        facts={"date": about, "nights": [facts(night, next_to(night, arrived)) for night in nights]},
    )


def last_night(track: Track, day: date) -> Night | None:
    """Return the track's night that ended on this day, or was the last before it."""
    return track.nights.filter(date__lt=day, date__gte=day - 2 * DAY).select_related("run__entry", "track").first()


def arrival(track: Track, day: date) -> Run | None:
    """Return the latest train of a night that was scored since the post before."""
    until = datetime.combine(day + DAY, time(), UTC)
    arrived = Run.objects.with_entry().filter(track=track, nights__isnull=False, state=Run.State.FINISHED)
    return arrived.filter(finished_at__gt=until - 2 * DAY, finished_at__lt=until).order_by("-finished_at").first()


def next_to(night: Night, arrived: list[Run]) -> Run | None:
    return next((run for run in arrived if run.track_id == night.track_id), None)


def lines(night: Night, arrived: Run | None) -> list[str]:
    """Return what there is to say of a track: what arrived, then what the night itself did if that is another thing."""
    said = [f"{night.track.name}: {result(arrived)}"] if arrived else []
    if arrived is None or night.run_id != arrived.pk:
        said.append(f"{night.track.name}: {state(night)}")
    return said


def result(run: Run) -> str:
    table = refresh_standings(run.track)
    row, bits = table.get_row(run.entry_id), f"{run.bits_per_byte:.4f} bits per byte."
    return f"{run.entry.title} arrived with {bits} {explanations.describe_standing(row, table) if row else bits}"


def state(night: Night) -> str:
    run = night.run
    if run is None or run.state in (Run.State.WAITING, Run.State.QUEUED):
        return night.sentence
    if run.state in (Run.State.TRAINING, Run.State.PAUSED):
        left = f", {formatting.duration(run.seconds_left)} left" if run.seconds_left else ""
        return f"{run.entry.title} is under way: {run.fraction:.0%} of its budget{left}."
    if run.state == Run.State.SCORING:
        return f"{run.entry.title} is trained and being scored."
    return f"{run.entry.title} did not arrive: {run.reason}"


def facts(night: Night, arrived: Run | None) -> dict[str, object]:
    run = arrived or night.run
    return {
        "track": night.track.slug,
        "sentence": night.sentence,
        "run": run.pk if run else None,
        "state": run.state if run else None,
        "bits_per_byte": run.bits_per_byte if run else None,
    }


def curve(run: Run) -> list[Attachment]:
    """Return a run's curve as a picture and as numbers."""
    at = settings.SITE_URL
    picture, numbers = draw_run_card(run), write_curve_csv(run)
    return [
        Attachment(f"run-{run.pk}.png", "image/png", at + reverse("run-picture", args=[run.pk]), picture),
        Attachment(f"run-{run.pk}.csv", "text/csv", at + reverse("run-csv", args=[run.pk]), numbers),
    ]
