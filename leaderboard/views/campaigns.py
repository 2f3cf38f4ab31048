"""The dataset swarm's pages: which corpora are rephrased, how far each is, who writes, what comes out, how to join."""

from __future__ import annotations

import shlex
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.template.loader import render_to_string
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import condition, require_POST, require_safe

from leaderboard.publishing.datasets import hub_address
from leaderboard.views.live import IDLE_SECONDS, LIVE_SECONDS, latest_event, revision_of
from scheduler.campaigns import dataset, join_tokens, statistics
from scheduler.models import Campaign

SAMPLES = 4
LEADERS = 20
LOOPBACK = ("127.0.0.1", "localhost", "::1")
TICK_SECONDS = 5
"""How often speeds and times are worked out anew for those who look on."""


@require_safe
def campaigns(request: HttpRequest) -> HttpResponse:
    context = {"shelf": statistics.shelf(), "line": join_line(), "site_url": settings.SITE_URL}
    return render(request, "leaderboard/campaigns.html", {**context, "revision": revision_of(request)})


@require_safe
def campaigns_live(request: HttpRequest) -> JsonResponse:
    shelf = statistics.shelf()
    parts = {"shelf": render_to_string("leaderboard/parts/shelf.html", {"shelf": shelf})}
    moving = any(row["campaign"].state == Campaign.State.RUNNING for row in shelf)
    return JsonResponse(
        {"parts": parts, "revision": latest_event(), "wait": TICK_SECONDS if moving else 2 * IDLE_SECONDS}
    )


@require_safe
def campaign(request: HttpRequest, slug: str) -> HttpResponse:
    found = begun(slug)
    context = {**lines(found), **now(found), "revision": found.state, "hub": hub_address(found)}
    return render(request, "leaderboard/campaign.html", {**context, "facts": facts(found)})


def live_etag(request: HttpRequest, slug: str) -> str:
    return f'"{latest_event()}-{int(timezone.now().timestamp() / TICK_SECONDS)}"'


@require_safe
@condition(etag_func=live_etag)
def campaign_live(request: HttpRequest, slug: str) -> JsonResponse:
    found = begun(slug)
    context = now(found)
    parts = {
        name: render_to_string(f"leaderboard/parts/campaign_{name}.html", context)
        for name in ("progress", "people", "samples", "refused")
    }
    moving = found.state == Campaign.State.RUNNING and context["totals"].volunteers_now
    # The page is not loaded anew for what happens elsewhere on the site: its parts are all that changes.
    wait = 2 * LIVE_SECONDS if moving else IDLE_SECONDS
    return JsonResponse({"parts": parts, "revision": found.state, "wait": wait})


@require_POST
@never_cache
@login_required
def campaign_line(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a signed-in volunteer the line whose work counts as theirs."""
    assert request.user.is_authenticated
    found, token = begun(slug), join_tokens.token(request.user)
    return render(request, "leaderboard/campaign_line.html", {"campaign": found, **lines(found, token)})


def begun(slug: str) -> Campaign:
    """Return a campaign; 404 for one that nobody has started yet."""
    return get_object_or_404(Campaign.objects.exclude(state=Campaign.State.DRAFT), slug=slug)


def now(found: Campaign) -> dict[str, Any]:
    """Return what changes while a campaign runs."""
    totals = statistics.totals(found)
    refused = statistics.rejections(found)
    most = max((row["outputs"] for row in refused), default=1)
    return {
        "campaign": found,
        "totals": totals,
        "stretches": stretches(totals),
        "leaders": statistics.leaderboard(found, LEADERS),
        "samples": statistics.samples(found, SAMPLES),
        "refused": [{**row, "width": f"{100 * row['outputs'] / most:.2f}"} for row in refused],
        "texts": totals.texts + totals.rejected,
    }


def stretches(totals: statistics.Totals) -> list[dict[str, Any]]:
    """Return the packets as parts of a bar: per cent from the left."""
    found, at = [], 0.0
    for name in ("done", "aside", "held", "waiting"):
        width = 100 * getattr(totals, name) / max(totals.packets, 1)
        found.append({"name": name, "at": f"{at:.3f}", "width": f"{width:.3f}", "packets": getattr(totals, name)})
        at += width
    return found


# --- what it is made of ----------------------------------------------------------------------------------------------


def facts(found: Campaign) -> list[tuple[str, str]]:
    """Return what a campaign is made with: fixed since it began."""
    revision = f" at {found.model_revision}" if found.model_revision else ""
    sampling = f"temperature {found.temperature:g}, top_p {found.top_p:g}, at most {found.max_tokens:,} tokens"
    kept = ", ".join(found.buckets) if found.buckets else "all text"
    return [
        ("Source", source(found)),
        ("Left out", dataset.left_out(found)),
        ("Quality", kept),
        ("Chunks", f"about {found.chunk_tokens} tokens, cut at sentence ends"),
        ("Styles", ", ".join(found.styles)),
        ("Prompts", f"version {found.prompt_version}"),
        ("Model", f"{found.model}{revision}"),
        ("Sampling", sampling),
        ("Licence", found.licence),
    ]


def source(found: Campaign) -> str:
    if found.source != Campaign.Source.HUB:
        return f"files of this site: {found.dataset}"
    return ", ".join(part for part in (found.dataset, found.config, found.split, found.revision) if part)


# --- how to join -----------------------------------------------------------------------------------------------------


def lines(found: Campaign, token: str = "") -> dict[str, str]:
    """Return what a volunteer pastes."""
    return {"line": join_line(found, token), "docker": docker_line(found, token)}


def words(found: Campaign | None, token: str) -> list[str]:
    chosen = ["--campaign", found.slug] if found else []
    return ["--server", settings.SITE_URL, *chosen, *(["--token", token] if token else [])]


def join_line(found: Campaign | None = None, token: str = "") -> str:
    return shlex.join(["dailytrain", "rephrase", "join", *words(found, token)])


def docker_line(found: Campaign | None = None, token: str = "") -> str:
    options = ["--rm", "-it", "--gpus", "all", "-v", "dailytrain-volunteer:/home/node/data"]
    options += ["--network", "host"] if urlsplit(settings.SITE_URL).hostname in LOOPBACK else []
    return shlex.join(["docker", "run", *options, settings.VOLUNTEER_IMAGE, *words(found, token)])
