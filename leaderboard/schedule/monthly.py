"""The monthly train: the best entries since the last one, each with seven times the budget, and the baseline beside.

Gains shrink with scale, so the best of a month show what is left of theirs at a larger one. These runs do not count on
the board, whose budget is another; they are compared with each other and with the baseline's run of the same length.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice

from django.db import IntegrityError, transaction
from django.db.models import Min

from leaderboard import runs
from leaderboard.models import Entry, Month, Run, Track
from leaderboard.rankings.eligible_runs import EXCLUDED_TRUST
from leaderboard.rankings.standings import compute_standings
from leaderboard.schedule import nightly
from scheduler import storage
from scheduler.models import Blob, Event
from trainer.accounting.budget import Budget

BUDGET_FACTOR = 7
"""A night's budget becomes a week's."""
FIRST_LOOK_BACK = timedelta(days=31)


def start_monthly_runs(now: datetime) -> list[Month]:
    """Start the month's train on every track that has one, once per month (UTC); return those that this call began."""
    first = now.astimezone(UTC).date().replace(day=1)
    tracks = Track.objects.in_order().filter(monthly__gt=0, season__active=True).select_related("season__baseline")
    found = [start_month(track, first, now) for track in tracks if not track.months.filter(date=first).exists()]
    return [month for month in found if month]


def start_month(track: Track, first: date, now: datetime) -> Month | None:
    """Do what this month asks of one track and write it into its diary; None if another process was first."""
    release = storage.store_release()
    try:
        with transaction.atomic():
            month = Month.objects.create(date=first, track=track)
            month.sentence = (describe_unfinished(track) or queue_month(month, now, release))[:500]
            month.save()
            Event.record(runs.SITE, track, f"Monthly train of {first:%B}: {month.sentence}")
            return month
    except IntegrityError:
        if Month.objects.filter(date=first, track=track).exists():
            return None
        raise


def describe_unfinished(track: Track) -> str:
    """Return why nothing departs: the train before is still under way; empty where it is not."""
    left = Run.objects.filter(track=track, purpose=Run.Purpose.MONTHLY, state__in=nightly.BLOCKING_STATES).count()
    still = f"{left} runs" if left > 1 else "a run"
    return f"The last monthly train is still under way with {still}: no second one departs." if left else ""


def queue_month(month: Month, now: datetime, release: Blob) -> str:
    """Queue the month's runs and return the diary's sentence."""
    track = month.track
    last = track.months.exclude(pk=month.pk).exclude(runs=None).first()
    chosen = choose_best_entries(track, last.created_at if last else now - FIRST_LOOK_BACK)
    if not chosen:
        return "No new entry has arrived since the last one: nothing departs."
    for entry in [*chosen, *list_missing_baseline(track)]:
        run = runs.make_run(entry, track, budget=get_monthly_budget(track), purpose=Run.Purpose.MONTHLY)
        runs.queue_run(run, release=release)
        month.runs.add(run)
    names = ", ".join(entry.title for entry in chosen)
    where = next(
        (words for run in month.runs.select_related("job") if (words := nightly.describe_missing_node(run))), ""
    )
    return f"With {BUDGET_FACTOR} times the budget: {names}.{where}"


def get_monthly_budget(track: Track) -> str:
    return str(Budget.parse(track.budget).times(BUDGET_FACTOR))


def choose_best_entries(track: Track, since: datetime) -> list[Entry]:
    """Return the best entries whose first run arrived since then, in the board's order; of main's commits only one."""
    first_arrival = Min("runs__finished_at")
    entries = Entry.objects.approved().filter(track=track).annotate(arrived=first_arrival)
    fresh = {entry.pk: entry for entry in entries.filter(arrived__gt=since) if entry.pk != track.season.baseline_id}
    rows = compute_standings(track).rows
    found = [fresh[row.entry] for row in rows if row.entry in fresh and row.trust not in EXCLUDED_TRUST]
    mains = [entry.pk for entry in found if entry.kind == Entry.Kind.MAIN]
    return list(islice((entry for entry in found if entry.pk not in mains[1:]), track.monthly))


def list_missing_baseline(track: Track) -> list[Entry]:
    """Return the season's baseline unless it has run at this length: what the others are compared with."""
    baseline = track.season.baseline
    if baseline is None or baseline.runs.filter(track=track, budget=get_monthly_budget(track)).exists():
        return []
    return [baseline]
