"""The pages of a family of near entries, of contributors and of rulings."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from leaderboard.contributors import list_contributors
from leaderboard.models import Entry, Ruling
from leaderboard.submissions import families


@require_safe
def family(request: HttpRequest, entry_id: int) -> HttpResponse:
    """Show the family whose first entry this is."""
    first = get_object_or_404(Entry.objects.select_related("track"), pk=entry_id, family=entry_id)
    members = families.list_members(first)
    pooled = families.pool_multipliers(members)
    return render(request, "leaderboard/family.html", {"first": first, "members": members, "pooled": pooled})


@require_safe
def contributors(request: HttpRequest) -> HttpResponse:
    """List contributors by verified gain."""
    return render(request, "leaderboard/contributors.html", {"contributors": list_contributors()})


@require_safe
def rulings(request: HttpRequest) -> HttpResponse:
    """List all rulings, those that are revoked too, the newest first."""
    found = Ruling.objects.select_related("family").prefetch_related("entries")
    return render(request, "leaderboard/rulings.html", {"rulings": found})
