"""Feeds and cards: what other pages and readers fetch."""

from __future__ import annotations

from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import condition, conditional_page, require_safe

from leaderboard import feeds
from leaderboard.charts import cards
from leaderboard.models import Entry, StandingsTable, Track

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
