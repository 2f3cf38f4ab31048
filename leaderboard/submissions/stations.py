"""The chain of tracks: an entry starts at the first, and moves up once it is above 1 with confidence.

The same commit, architecture and variant on another track is another Entry: a station of its way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.db.models import QuerySet
from typing_extensions import TypedDict

from leaderboard.models import Confirmation, Entry, Standing, Track
from leaderboard.submissions import intake, smoke_tests
from scheduler.models import SITE_ACTOR, Event

IDENTITY = ("repository", "sha", "architecture", "variant")
"""What the entries of one way have in common."""
COPIED = ("kind", "title", "author", "hypothesis", "url", "config", "pull_request", "requested_by", "based_on")
COPIED_FILES = ("bundle", "base_sha", "changed_files", "source_bytes")


class StationDict(TypedDict):
    track: str
    entry: int | None  # null: it has not come there
    state: str | None
    multiplier: float | None
    low: float | None  # of the 95 % interval: above 1, it moves up
    high: float | None


@dataclass(frozen=True)
class Station:
    track: Track
    entry: Entry | None
    """None: it has not come there."""
    row: Standing | None

    def to_dict(self) -> StationDict:
        entry, row = self.entry, self.row
        return {
            "track": self.track.slug,
            "entry": entry.pk if entry else None,
            "state": entry.state if entry else None,
            "multiplier": row.multiplier if row else None,
            "low": row.multiplier_low if row else None,
            "high": row.multiplier_high if row else None,
        }


def list_stations(entry: Entry) -> list[Station]:
    """Return the tracks of an entry's way in order; empty if its track is in no chain."""
    tracks = [*entry.track.list_earlier(), entry.track]
    for track in tracks:
        tracks += Track.objects.filter(qualifier=track, season=track.season_id).exclude(pk__in=[t.pk for t in tracks])
    entries = {each.track_id: each for each in find_entries(entry).filter(track__in=tracks)}
    rows = Standing.objects.filter(entry__in=entries.values(), table__axis="flops").select_related("table")
    own = {row.entry_id: row for row in rows}
    found = [(track, entries.get(track.pk)) for track in tracks]
    return [Station(track, on, own.get(on.pk) if on else None) for track, on in found] if len(tracks) > 1 else []


def find_entries(entry: Entry) -> QuerySet[Entry]:
    return Entry.objects.filter(**{name: getattr(entry, name) for name in IDENTITY}).select_related("track")


def set_ancestor(entry: Entry, number: int) -> None:
    """Let an entry and its other stations build on an earlier one, except confirmed records. Raises IntakeError."""
    intake.check_ancestor(number, entry.sha, entry.pk)
    records = Confirmation.objects.filter(outcome=Confirmation.Outcome.RECORD)
    own = find_entries(entry).filter(pull_request=entry.pull_request_id).exclude(pk__in=records.values("entry"))
    own.update(based_on=number)
    entry.refresh_from_db()


def move_entries_up(track: Track) -> int:
    """Enter on the next tracks what is above 1 with confidence on this one; return how many are new."""
    next_tracks = Track.objects.filter(qualifier=track, season=track.season_id)
    if not next_tracks:
        return 0
    better = Standing.objects.filter(table__track=track, table__axis="flops", multiplier_low__gt=1, is_baseline=False)
    entries = Entry.objects.approved().filter(kind=Entry.Kind.ARCHITECTURE, is_held=False, standings__in=better)
    count = 0
    for entry in entries.filter(ruling=None).select_related("track"):
        for following in next_tracks.exclude(entries__in=find_entries(entry)):
            _, created = enter_station(entry, following, SITE_ACTOR)
            count += created
    return count


@transaction.atomic
def enter_station(entry: Entry, track: Track, actor: str) -> tuple[Entry, bool]:
    """Return the entry's station on a track, and whether it is new; then its smoke test is queued."""
    fields: dict[str, Any] = {name: getattr(entry, name) for name in (*COPIED, *COPIED_FILES)}
    key = {name: getattr(entry, name) for name in IDENTITY}
    station, created = Entry.objects.get_or_create(track=track, **key, defaults=fields)
    if created:
        Event.record(actor, station, f"Moved up from {entry.track.name}.", "moved up")
        Event.record(actor, entry, f"Moves up to {track.name}.")
        smoke_tests.queue_smoke_test(station, actor=actor, is_vouched=True)
    return station, created


def lift_entry(entry: Entry, user: AbstractBaseUser) -> list[Entry]:
    """Enter and approve an entry on the next tracks, whatever its multiplier is. Raises IntakeError."""
    next_tracks = Track.objects.filter(qualifier=entry.track, season=entry.track.season_id).select_related("season")
    stations = []
    for track in next_tracks:
        intake.check_permission(user, "approve", Entry(track=track))
        station, _ = enter_station(entry, track, user.get_username())
        intake.approve_entry(station, station.sha, user)
        stations.append(station)
    if not stations:
        raise intake.IntakeError(f"{entry.track.name} qualifies for no other track.")
    return stations
