"""Feeds (Atom, RFC 4287): records of all tracks, and what becomes of one entry."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import urlsplit

from django.conf import settings
from django.db.models import Max, Q, QuerySet
from django.urls import reverse
from django.utils.feedgenerator import Atom1Feed

from leaderboard.board.frontier import Record, height, records
from leaderboard.models import Entry, Run, Track
from leaderboard.rankings import standings
from leaderboard.sanitize import plain_text
from scheduler.models import Event

MOST = 50
"""Items of a feed, the latest."""
TITLE, TEXT = 300, 2000
"""Letters of an item's title and text, at most; `plain_text` also takes out what XML has no letters for."""


def of_records() -> str:
    """Return the records of every track's present season, latest first."""
    found = [
        (track, record)
        for track in Track.objects.in_order()
        for record in records(standings.of(track))
    ]  # fmt: skip
    found.sort(key=lambda pair: pair[1].at, reverse=True)
    feed = made("Records", "/feeds/records.atom", "/", "Every record, with its compute multiplier and interval.")
    for track, record in found[:MOST]:
        row = record.row
        feed.add_item(
            title=plain_text(f"{row.latest.title}: multiplier {height(row):.3f} on {track.name}", TITLE),
            link=settings.SITE_URL + row.page,
            description=record_says(track, record),
            unique_id=tag("record", row.entry, record.at),
            pubdate=record.at,
            updateddate=record.at,
            author_name=plain_text(row.latest.author, TITLE) or settings.SITE_NAME,
        )
    return written(feed, found[0][1].at if found else None)


def record_says(track: Track, record: Record) -> str:
    estimate = record.row.estimate
    assert estimate is not None
    between = f" (95 % interval {estimate.low:.3f} to {estimate.high:.3f})" if estimate.low and estimate.high else ""
    over = f" {record.over:.3f} times the record before." if record.over else ""
    return (
        f"The baseline would need {height(record.row):.3f} times its compute{between} for its loss of "
        f"{record.row.bits_per_byte:.4f} bits per byte, at {track.budget}.{over}"
    )


def of_entry(entry: Entry) -> str:
    """Return what happened to an entry and to its runs, latest first."""
    path, title = reverse("entry", args=[entry.pk]), plain_text(entry.title, TITLE)
    feed = made(title, reverse("entry-feed", args=[entry.pk]), path, f"What becomes of {title}.")
    runs = {run.pk: run for run in Run.objects.filter(entry=entry)}
    events = list(events_of(entry, list(runs))[:MOST])
    for event in events:
        run = runs.get(event.target_id) if event.target_kind == "run" else None
        about = f"Run {run.pk}, seed {run.seed}: " if run else ""
        feed.add_item(
            title=plain_text(about + event.sentence, TITLE),
            link=settings.SITE_URL + (run.get_absolute_url() if run else path),
            description=plain_text(event.sentence, TEXT),
            unique_id=tag("event", event.pk, event.at),
            pubdate=event.at,
            updateddate=event.at,
        )
    return written(feed, events[0].at if events else entry.created_at)


def events_of(entry: Entry, runs: list[int]) -> QuerySet[Event]:
    mine = Q(target_kind="entry", target_id=entry.pk) | Q(target_kind="run", target_id__in=runs)
    return Event.objects.filter(mine).order_by("-at", "-pk")


def changed() -> str:
    """Return a word that differs after any change of a judged run: the ETag of the records."""
    judged = Run.objects.filter(state=Run.State.FINISHED)
    last = judged.aggregate(last=Max("finished_at"))["last"]
    return f"{judged.version()}-{last.timestamp() if last else 0}"


# --- the paper it is written on --------------------------------------------------------------------------------------


class Feed(Atom1Feed):
    """Atom with a date of its own: a feed without items has not changed just now."""

    last: datetime | None = None

    def latest_post_date(self) -> datetime:
        return self.last or datetime.fromisoformat("2020-01-01T00:00:00+00:00")


def made(title: str, path: str, page: str, about: str) -> Feed:
    return Feed(
        title=f"{title} · {settings.SITE_NAME}",
        link=settings.SITE_URL + page,
        feed_url=settings.SITE_URL + path,
        description=about,
        subtitle=about,
        language="en",
        author_name=settings.SITE_NAME,
        feed_guid=settings.SITE_URL + path,
    )


def written(feed: Feed, last: datetime | None) -> str:
    feed.last = last
    return feed.writeString("utf-8")


def tag(what: str, number: int, at: datetime) -> str:
    """Return an item's name for good (RFC 4151)."""
    return f"tag:{urlsplit(settings.SITE_URL).hostname},{at:%Y-%m-%d}:{what}/{number}"
