"""Begin a season: its dataset is prepared first, then the tracks of the one before continue in it."""

from __future__ import annotations

from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from leaderboard import graphs
from leaderboard.models import Entry, Run, Season, Track
from leaderboard.models.seasons import build_caps
from leaderboard.schedule import ladder
from leaderboard.schedule.first_season import SetupError
from scheduler.models import SITE_ACTOR, Event


def create_season(name: str, corpus: str, tokenizer: str, limit_bytes: int | None) -> Season:
    """Return the season with these values, which becomes current in `begin_season`. A repeated request returns it.

    Raises SetupError if another season has this name or this one is over, and ValidationError.
    """
    fields = {"corpus": corpus, "tokenizer": tokenizer, "limit_bytes": limit_bytes}
    season = Season.objects.filter(name=name).first()
    if season is not None:
        if any(getattr(season, field) != value for field, value in fields.items()):
            raise SetupError(f"There is another season {name!r}: {describe_values(season)}. Choose another name.")
        return check_not_over(season)
    season = Season(name=name, active=False, **fields)
    season.full_clean()
    season.save()
    return season


def get_season(name: str) -> Season:
    """Return the season with this name. Raises SetupError if there is none or it is over."""
    season = Season.objects.filter(name=name).first()
    if season is None:
        raise SetupError(f"There is no season {name!r}. To create it, name its --corpus.")
    return check_not_over(season)


def check_not_over(season: Season) -> Season:
    if ended_at := get_end(season):
        raise SetupError(f"{season} ended on {ended_at:%-d %b %Y}; choose another name.")
    return season


def describe_values(season: Season) -> str:
    return f"--corpus {season.corpus} --tokenizer {season.tokenizer}, {season.limit_bytes or 'all'} bytes of text"


def get_end(season: Season) -> datetime | None:
    """Return when the next season began; None for a season that is current or has not begun."""
    if not (season.active or season.runs.exists()):
        return None
    later = Season.objects.filter(active=True, started_at__gt=season.started_at).order_by("started_at").first()
    return later.started_at if later else None


@transaction.atomic
def begin_season(season: Season) -> list[Track]:
    """Make a prepared season the current one and return the tracks that it takes over. Idempotent.

    Without a baseline, it gets the newest `main` with a scored run in the season before. Finished and queued runs keep
    their season, and so does a track that does not fit into it (`explain_obstacle`); an Event names the reason.
    """
    graphs.lock_season(season.pk)
    previous = Season.objects.current()
    if previous == season:
        return []
    season.refresh_from_db()  # its caps and baseline may have changed since its preparation began
    season.active, season.started_at = True, timezone.now()
    if previous is not None:
        if season.caps == build_caps():
            season.caps = previous.caps
        mains = Entry.objects.approved().filter(kind=Entry.Kind.MAIN, track__season=previous)
        scored = Run.objects.filter(season=previous, state=Run.State.FINISHED, bits_per_byte__isnull=False)
        newest = mains.filter(runs__in=scored).order_by("-pk").first()
        season.baseline = season.baseline or newest or previous.baseline
    season.save()
    tracks = list(Track.objects.filter(season=previous)) if previous is not None else []
    obstacles = {track.pk: explain_obstacle(track, season) for track in tracks}
    moved = [track for track in tracks if not obstacles[track.pk]]
    for track in moved:
        track.season = season
        track.save()
    Event.record(SITE_ACTOR, season, f"{season} began with {len(moved)} tracks.")
    for track in tracks:
        if obstacle := obstacles[track.pk]:
            Event.record(SITE_ACTOR, track, f"{track} stays in {previous}: {obstacle}"[:500])
    return moved


def explain_obstacle(track: Track, season: Season) -> str:
    """Return why a track cannot continue in a season, as a sentence; empty if it can."""
    if track.start_run is not None and not season.shares_tokenizer(track.start_run.season):
        return "its first weights have another tokenizer."
    before, track.season = track.season, season
    try:
        track.full_clean()
    except ValidationError as error:
        return " ".join(error.messages)
    finally:
        track.season = before
    return ""


def list_left_tracks(season: Season) -> list[tuple[Track, str]]:
    """Return the tracks of the season before that stayed there when this one began, with the reasons."""
    earlier = Season.objects.filter(active=True, started_at__lt=season.started_at).order_by("-started_at").first()
    tracks = Track.objects.filter(season=earlier) if season.active and earlier else Track.objects.none()
    return [(track, explain_obstacle(track, season)) for track in tracks]


def start_ladders(tracks: list[Track]) -> int:
    """Queue the first runs of the new baseline; return how many."""
    return sum(ladder.fill_ladder(track) for track in tracks if track.ladder)
