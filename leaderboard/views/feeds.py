"""Feeds and badges: what other pages and readers fetch."""

from __future__ import annotations

from django.db.models import Max
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import condition, conditional_page, require_safe

from leaderboard import feeds
from leaderboard.charts import badges, cards
from leaderboard.charts.badges import Badge
from leaderboard.models import Entry, StandingsTable, Track
from leaderboard.rankings.standings_store import load_standings
from scheduler.sponsors.badges import draw_badge

ATOM = "application/atom+xml; charset=utf-8"
KEPT = {"Cache-Control": "public, max-age=300"}
"""Whoever shows a badge or reads a feed may keep it so long."""


@require_safe
@condition(etag_func=lambda request: f'"{feeds.get_version()}"')
def records(request: HttpRequest) -> HttpResponse:
    return HttpResponse(feeds.build_records_feed(), content_type=ATOM, headers=KEPT)


@require_safe
@conditional_page
def entry_feed(request: HttpRequest, entry_id: int) -> HttpResponse:
    found = get_object_or_404(Entry, pk=entry_id)
    return HttpResponse(feeds.build_entry_feed(found), content_type=ATOM, headers=KEPT)


# --- badges: as a picture, and as shields.io's endpoint takes them ----------------------------------------------------


def of_track(slug: str) -> Badge:
    return badges.build_track_badge(load_standings(get_object_or_404(Track, slug=slug)))


def of_entry(entry_id: int) -> Badge:
    entry = get_object_or_404(Entry.objects.select_related("track__season"), pk=entry_id)
    return badges.build_entry_badge(entry, load_standings(entry.track))


def picture(found: Badge) -> HttpResponse:
    return HttpResponse(draw_badge(found.label, found.message), content_type="image/svg+xml", headers=KEPT)


def shields(found: Badge) -> JsonResponse:
    return JsonResponse(found.to_dict(), headers=KEPT)


@require_safe
@conditional_page
def track_badge(request: HttpRequest, slug: str, form: str) -> HttpResponse:
    return (picture if form == "svg" else shields)(of_track(slug))


@require_safe
@conditional_page
def entry_badge(request: HttpRequest, entry_id: int, form: str) -> HttpResponse:
    return (picture if form == "svg" else shields)(of_entry(entry_id))


# --- cards: the pictures of link previews -----------------------------------------------------------------------------


@require_safe
@conditional_page
def entry_card(request: HttpRequest, entry_id: int) -> HttpResponse:
    entry = get_object_or_404(Entry.objects.select_related("track__season"), pk=entry_id)
    return HttpResponse(cards.draw_entry_card(entry), content_type="image/png", headers=KEPT)


def board_etag(request: HttpRequest, slug: str) -> str:
    computed_at = StandingsTable.objects.filter(track__slug=slug).aggregate(last=Max("computed_at"))["last"]
    return f'"{computed_at}"'


@require_safe
@condition(etag_func=board_etag)
def track_card(request: HttpRequest, slug: str) -> HttpResponse:
    track = get_object_or_404(Track.objects.select_related("season"), slug=slug)
    return HttpResponse(cards.draw_track_card(track), content_type="image/png", headers=KEPT)
