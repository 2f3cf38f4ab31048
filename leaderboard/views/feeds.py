"""Feeds and badges: what other pages and readers fetch."""

from __future__ import annotations

from django.db.models import Max
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import condition, conditional_page, require_safe

from leaderboard import feeds
from leaderboard.charts import cards
from leaderboard.models import Entry, StandingsTable, Track
from leaderboard.rankings.standings_store import load_standings
from scheduler.sponsors.badges import draw_badge

ATOM = "application/atom+xml; charset=utf-8"
CACHE_HEADERS = {"Cache-Control": "public, max-age=300"}


@require_safe
@condition(etag_func=lambda request: f'"{feeds.get_version()}"')
def records(request: HttpRequest) -> HttpResponse:
    return HttpResponse(feeds.build_records_feed(), content_type=ATOM, headers=CACHE_HEADERS)


@require_safe
@conditional_page
def entry_feed(request: HttpRequest, entry_id: int) -> HttpResponse:
    entry = get_object_or_404(Entry, pk=entry_id)
    return HttpResponse(feeds.build_entry_feed(entry), content_type=ATOM, headers=CACHE_HEADERS)


# --- badges: as a picture, and as shields.io's endpoint takes them ----------------------------------------------------


def build_badge_response(label: str, message: str, form: str) -> HttpResponse:
    if form == "svg":
        return HttpResponse(draw_badge(label, message), content_type="image/svg+xml", headers=CACHE_HEADERS)
    endpoint = {"schemaVersion": 1, "label": label, "message": message, "color": "0b5cad", "cacheSeconds": 300}
    return JsonResponse(endpoint, headers=CACHE_HEADERS)


@require_safe
@conditional_page
def track_badge(request: HttpRequest, slug: str, form: str) -> HttpResponse:
    table = load_standings(get_object_or_404(Track, slug=slug))
    return build_badge_response(*cards.build_track_badge(table), form)


@require_safe
@conditional_page
def entry_badge(request: HttpRequest, entry_id: int, form: str) -> HttpResponse:
    entry = get_object_or_404(Entry.objects.select_related("track"), pk=entry_id)
    return build_badge_response(*cards.build_entry_badge(entry, load_standings(entry.track)), form)


# --- cards: the pictures of link previews -----------------------------------------------------------------------------


@require_safe
@conditional_page
def entry_card(request: HttpRequest, entry_id: int) -> HttpResponse:
    entry = get_object_or_404(Entry.objects.select_related("track__season"), pk=entry_id)
    return HttpResponse(cards.draw_entry_card(entry), content_type="image/png", headers=CACHE_HEADERS)


def board_etag(request: HttpRequest, slug: str) -> str:
    computed_at = StandingsTable.objects.filter(track__slug=slug).aggregate(last=Max("computed_at"))["last"]
    return f'"{computed_at}"'


@require_safe
@condition(etag_func=board_etag)
def track_card(request: HttpRequest, slug: str) -> HttpResponse:
    track = get_object_or_404(Track.objects.select_related("season"), slug=slug)
    return HttpResponse(cards.draw_track_card(track), content_type="image/png", headers=CACHE_HEADERS)
