"""The morning report: last night's results on every nightly track."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from django.conf import settings
from django.urls import reverse

from leaderboard import formatting
from leaderboard.charts.cards import draw_run_card
from leaderboard.charts.curve_svg import write_curve_csv
from leaderboard.models import Night, Run, Track
from leaderboard.notifications.message import Attachment, Message
from leaderboard.rankings import explanations
from leaderboard.rankings.standings_store import refresh_standings

DAY = timedelta(days=1)


def compose_report(day: date) -> Message | None:
    """Report the runs that finished within 24 hours, and the unfinished ones; None without nights."""
    tracks = list(Track.objects.nightly().order_by("position", "slug"))
    nights = [night for track in tracks if (night := find_last_night(track, day))]
    if not nights:
        return None
    finished = {track.pk: run for track in tracks if (run := find_finished_run(track, day))}
    results = [(night, finished.get(night.track_id)) for night in nights]
    first = next(iter(finished.values()), None)
    return Message(
        title=f"Morning report: {day:%-d %b}",
        lines=tuple(line for night, run in results for line in format_lines(night, run)),
        url=settings.SITE_URL + (first.get_absolute_url() if first else reverse("calendar")),
        files=build_attachments(first) if first else (),
    )


def find_last_night(track: Track, day: date) -> Night | None:
    """Return the track's latest night before this day, of the last two."""
    return track.nights.filter(date__lt=day, date__gte=day - 2 * DAY).select_related("run__entry", "track").first()


def find_finished_run(track: Track, day: date) -> Run | None:
    """Return the latest nightly run that was scored since the report before."""
    until = datetime.combine(day + DAY, time(), UTC)
    finished = Run.objects.with_entry().filter(track=track, nights__isnull=False, state=Run.State.FINISHED)
    return finished.filter(finished_at__gt=until - 2 * DAY, finished_at__lt=until).order_by("-finished_at").first()


def format_lines(night: Night, finished: Run | None) -> list[str]:
    """Return a track's sentences: the finished run, then the last night if its run is another one."""
    lines = [f"{night.track.name}: {describe_result(finished)}"] if finished else []
    if finished is None or night.run_id != finished.pk:
        lines.append(f"{night.track.name}: {describe_state(night)}")
    return lines


def describe_result(run: Run) -> str:
    table = refresh_standings(run.track)
    row, bits = table.get_row(run.entry_id), f"{run.bits_per_byte:.4f} bits per byte"
    standing = explanations.describe_standing(row, table) if row else f"{bits}."
    return f"{run.entry.title} finished with {standing if standing.startswith(bits) else f'{bits}. {standing}'}"


def describe_state(night: Night) -> str:
    run = night.run
    if run is None or run.state in (Run.State.WAITING, Run.State.QUEUED):
        return night.sentence
    if run.state in (Run.State.TRAINING, Run.State.PAUSED):
        left = f", {formatting.duration(run.seconds_left)} left" if run.seconds_left else ""
        return f"{run.entry.title} is in progress: {run.fraction:.0%} of its budget{left}."
    if run.state == Run.State.SCORING:
        return f"{run.entry.title} is trained and being scored."
    return f"{run.entry.title} failed: {run.reason}"


def build_attachments(run: Run) -> tuple[Attachment, Attachment]:
    """Return a run's curve as PNG and as CSV."""
    picture, numbers = (settings.SITE_URL + reverse(name, args=[run.pk]) for name in ("run-picture", "run-csv"))
    return (
        Attachment(f"run-{run.pk}.png", "image/png", picture, draw_run_card(run)),
        Attachment(f"run-{run.pk}.csv", "text/csv", numbers, write_curve_csv(run)),
    )
