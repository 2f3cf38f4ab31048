"""Monthly runs: the best entries since the last month and the baseline, each with seven times the budget.

Gains shrink with scale, so these runs show how much remains at a larger one. They do not count on the board.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice

from django.db import transaction
from django.db.models import Min, Q

from leaderboard import runs
from leaderboard.models import Entry, Month, Run, Track
from leaderboard.rankings.standings import compute_standings
from leaderboard.schedule import nightly
from leaderboard.schedule.failures import isolate_track
from scheduler import storage
from scheduler.models import SITE_ACTOR, Blob, Event
from trainer.accounting.budget import Budget

BUDGET_FACTOR = 7
"""One week for a budget of one night."""
FIRST_LOOK_BACK = timedelta(days=31)


def start_monthly_runs(now: datetime) -> list[Month]:
    """Start the monthly runs of every track once per month (UTC); return the months that this call started.

    Raises RuntimeError once all tracks were tried if the site failed to start one: its task tries again.
    """
    first = now.astimezone(UTC).date().replace(day=1)
    tracks = Track.objects.in_order().filter(monthly__gt=0, season__active=True).select_related("season__baseline")
    months = []
    for track in tracks:
        if not track.months.filter(date=first).exists():
            with isolate_track(track, f"Monthly runs of {first:%B}"):
                months.append(start_month(track, first, now))
    if failed := [track.slug for track in tracks if not track.months.filter(date=first).exists()]:
        raise RuntimeError(f"No monthly runs of {', '.join(failed)}")
    return [month for month in months if month]


def start_month(track: Track, first: date, now: datetime) -> Month | None:
    """Start a track's month and record it; return None if another process was first."""
    release = storage.store_release()
    with transaction.atomic():
        month, created = Month.objects.get_or_create(date=first, track=track)
        if not created:
            return None
        month.sentence = (describe_unfinished(track) or queue_month(month, now, release))[:500]
        month.save()
        Event.record(SITE_ACTOR, track, f"Monthly runs of {first:%B}: {month.sentence}")
        return month


def describe_unfinished(track: Track) -> str:
    """Return why no runs start if earlier monthly runs are unfinished; empty if none is."""
    left = Run.objects.filter(track=track, purpose=Run.Purpose.MONTHLY, state__in=nightly.BLOCKING_STATES).count()
    runs_left = f"{left} runs" if left > 1 else "a run"
    return f"The last month still has {runs_left} in progress: no new runs start." if left else ""


def queue_month(month: Month, now: datetime, release: Blob) -> str:
    track = month.track
    last = track.months.exclude(pk=month.pk).exclude(runs=None).first()
    chosen = choose_best_entries(track, last.created_at if last else now - FIRST_LOOK_BACK)
    if not chosen:
        return "No new entry was scored since the last month: no runs start."
    for entry in [*chosen, *list_missing_baseline(track)]:
        run = runs.make_run(entry, track, budget=get_monthly_budget(track), purpose=Run.Purpose.MONTHLY)
        runs.queue_run(run, release=release)
        month.runs.add(run)
    names = ", ".join(entry.title for entry in chosen)
    problems = (nightly.describe_missing_node(run) for run in month.runs.select_related("job"))
    return f"With {BUDGET_FACTOR} times the budget: {names}.{next(filter(None, problems), '')}"


def get_monthly_budget(track: Track) -> str:
    return str(Budget.parse(track.budget).times(BUDGET_FACTOR))


def choose_best_entries(track: Track, since: datetime) -> list[Entry]:
    """Return the best entries first scored since then, in the board's order, with at most one of main's commits."""
    is_scored = Q(runs__state=Run.State.FINISHED, runs__bits_per_byte__isnull=False, runs__budget=track.budget)
    first_score = Min("runs__finished_at", filter=is_scored)
    entries = Entry.objects.approved().filter(track=track).annotate(scored_at=first_score).filter(scored_at__gt=since)
    fresh = {entry.pk: entry for entry in entries if entry.pk != track.season.baseline_id}
    rows = compute_standings(track).rows
    found = [fresh[row.entry] for row in rows if row.entry in fresh and not row.left_out]
    mains = [entry.pk for entry in found if entry.kind == Entry.Kind.MAIN]
    return list(islice((entry for entry in found if entry.pk not in mains[1:]), track.monthly))


def list_missing_baseline(track: Track) -> list[Entry]:
    """Return the season's baseline unless it has a run with this budget."""
    baseline = track.season.baseline
    if baseline is None or baseline.runs.filter(track=track, budget=get_monthly_budget(track)).exists():
        return []
    return [baseline]
