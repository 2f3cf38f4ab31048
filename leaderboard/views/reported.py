"""Records that were made elsewhere."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from leaderboard import reported_records
from leaderboard.models import Track


@require_safe
def track(request: HttpRequest, slug: str) -> HttpResponse:
    found = get_object_or_404(Track, slug=slug)
    return render(
        request, "leaderboard/reported.html", {"track": found, "sources": reported_records.group_by_source(found)}
    )
