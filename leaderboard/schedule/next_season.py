"""Begin a season: its dataset is prepared first, then the tracks of the one before continue in it."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.utils import timezone

from leaderboard import runs
from leaderboard.models import Entry, Run, Season, Track
from leaderboard.schedule import ladder
from leaderboard.schedule.first_season import SetupError
from scheduler.models import Event


def create_season(name: str, corpus: str, tokenizer: str, limit_bytes: int | None) -> Season:
    """Return the season with these values, which becomes current in `begin_season`. A repeated request returns it.

    Raises SetupError if another season has this name or this one is over, and ValidationError.
    """
    fields = {"corpus": corpus, "tokenizer": tokenizer, "limit_bytes": limit_bytes}
    season = Season.objects.filter(name=name).first()
    if season is not None:
        if any(getattr(season, field) != value for field, value in fields.items()):
            raise SetupError(f"There is another season named {name!r}: {season.corpus}, {season.tokenizer}.")
        if ended_at := get_end(season):
            raise SetupError(f"{season} ended on {ended_at:%-d %b %Y}; choose another name.")
        return season
    season = Season(name=name, active=False, **fields)
    season.full_clean()
    season.save()
    return season


def get_end(season: Season) -> datetime | None:
    """Return when the next season began; None for a season that is current or has not begun."""
    if not (season.active or season.runs.exists()):
        return None
    later = Season.objects.filter(active=True, started_at__gt=season.started_at).order_by("started_at").first()
    return later.started_at if later else None


@transaction.atomic
def begin_season(season: Season) -> list[Track]:
    """Make a prepared season the current one and return the tracks that it takes over. Idempotent.

    Its baseline is the newest `main` with a scored run in the season before. Finished and queued runs keep their
    season.
    """
    previous = Season.objects.current()
    if previous == season:
        return []
    season.active, season.started_at = True, timezone.now()
    if previous is not None:
        season.caps = previous.caps
        mains = Entry.objects.approved().filter(kind=Entry.Kind.MAIN, track__season=previous)
        scored = Run.objects.filter(season=previous, state=Run.State.FINISHED, bits_per_byte__isnull=False)
        season.baseline = mains.filter(runs__in=scored).order_by("-pk").first() or previous.baseline
    season.save()
    tracks = list(Track.objects.filter(season=previous)) if previous is not None else []
    for track in tracks:
        track.season = season
        track.save()
    Event.record(runs.SITE, season, f"{season} began with {len(tracks)} tracks.")
    return tracks


def start_ladders(tracks: list[Track]) -> int:
    """Queue the first runs of the new baseline; return how many."""
    return sum(ladder.fill_ladder(track) for track in tracks if track.ladder)
