"""Feeds (Atom, RFC 4287): records of all tracks, and what becomes of one entry."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import urlsplit

from django.conf import settings
from django.db.models import Max, Q
from django.urls import reverse
from django.utils.feedgenerator import Atom1Feed

from leaderboard.charts.frontier import Record, get_multiplier, load_records
from leaderboard.models import Entry, Run, StandingsTable
from leaderboard.sanitize import sanitize_text
from scheduler.models import Event

MAX_ITEMS = 50
TITLE, TEXT = 300, 2000
"""Maximum length of an item's title and text."""


def build_records_feed() -> str:
    """Return the records of all tracks, latest first."""
    tables = StandingsTable.objects.filter(axis="flops").select_related("track")
    records = [(table, record) for table in tables for record in load_records(table)]
    records.sort(key=lambda pair: pair[1].at, reverse=True)
    feed = build_feed("Records", "/feeds/records.atom", "/", "Every record, with its compute multiplier and interval.")
    for table, record in records[:MAX_ITEMS]:
        row = record.row
        feed.add_item(
            title=sanitize_text(
                f"{row.entry.title}: multiplier {get_multiplier(row):.3f} on {table.track.name}", TITLE
            ),
            link=settings.SITE_URL + row.page,
            description=describe_record(table, record),
            unique_id=build_tag("record", row.entry_id, record.at),
            pubdate=record.at,
            updateddate=record.at,
            author_name=sanitize_text(row.entry.author, TITLE) or settings.SITE_NAME,
        )
    return write_feed(feed, records[0][1].at if records else None)


def describe_record(table: StandingsTable, record: Record) -> str:
    row = record.row
    low, high = row.multiplier_low, row.multiplier_high
    ancestor = row.entry.based_on
    builds_on = f" It builds on {ancestor.title} by {ancestor.author}." if ancestor else ""
    between = f" (95 % interval {low:.3f} to {high:.3f})" if low and high else ""
    over = f" {record.over:.3f} times the record before." if record.over else ""
    return (
        f"The baseline would need {get_multiplier(row):.3f} times its compute{between} for its loss of "
        f"{row.bits_per_byte:.4f} bits per byte, at {table.budget}.{over}{builds_on}"
    )


def build_entry_feed(entry: Entry) -> str:
    """Return the events of an entry and its runs, latest first."""
    path, title = reverse("entry", args=[entry.pk]), sanitize_text(entry.title, TITLE)
    feed = build_feed(title, reverse("entry-feed", args=[entry.pk]), path, f"What becomes of {title}.")
    runs = {run.pk: run for run in Run.objects.filter(entry=entry)}
    mine = Q(target_kind="entry", target_id=entry.pk) | Q(target_kind="run", target_id__in=list(runs))
    events = list(Event.objects.filter(mine).order_by("-at", "-pk")[:MAX_ITEMS])
    for event in events:
        run = runs.get(event.target_id) if event.target_kind == "run" else None
        about = f"Run {run.pk}, seed {run.seed}: " if run else ""
        feed.add_item(
            title=sanitize_text(about + event.sentence, TITLE),
            link=settings.SITE_URL + (run.get_absolute_url() if run else path),
            description=sanitize_text(event.sentence, TEXT),
            unique_id=build_tag("event", event.pk, event.at),
            pubdate=event.at,
            updateddate=event.at,
        )
    return write_feed(feed, events[0].at if events else entry.created_at)


def get_version() -> str:
    return str(StandingsTable.objects.aggregate(last=Max("computed_at"))["last"])


# --- the feed itself --------------------------------------------------------------------------------------------------


class Feed(Atom1Feed):
    """Atom with the date of its last item, so that a feed without items does not look new."""

    last: datetime | None = None

    def latest_post_date(self) -> datetime:
        return self.last or datetime.fromisoformat("2020-01-01T00:00:00+00:00")


def build_feed(title: str, path: str, page: str, about: str) -> Feed:
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


def write_feed(feed: Feed, last: datetime | None) -> str:
    feed.last = last
    return feed.writeString("utf-8")


def build_tag(what: str, number: int, at: datetime) -> str:
    """Return a permanent id (RFC 4151)."""
    return f"tag:{urlsplit(settings.SITE_URL).hostname},{at:%Y-%m-%d}:{what}/{number}"
