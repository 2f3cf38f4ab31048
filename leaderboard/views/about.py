"""How the numbers of the board come about, on one page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from leaderboard.models import Track
from leaderboard.pool_totals import totals


@require_safe
def about(request: HttpRequest) -> HttpResponse:
    return render(request, "leaderboard/about.html", {"track": Track.objects.default(), "totals": totals()})
