"""Pages of the dataset swarm: campaigns, their progress, how to join, and the files of their datasets."""

from __future__ import annotations

import hashlib
import shlex
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.cache import get_conditional_response
from django.views.decorators.cache import never_cache
from django.views.decorators.http import condition, require_POST, require_safe

from scheduler import node_tokens, storage
from scheduler.campaigns import dataset_files, publishing, statistics
from scheduler.campaigns.models import Campaign
from scheduler.errors import RangeError
from scheduler.models import Event
from scheduler.node_api import downloads
from scheduler.rate_limits import build_rate_limit_response
from scheduler.sign_in import require_login_from
from scheduler.site_address import build_container_options
from trainer.rephrase import prompts

MAX_SAMPLES = 4
MAX_CONTRIBUTORS = 20
LIVE_SECONDS = 3.0
"""Refresh interval of a campaign's page while volunteers work on it."""
LIST_SECONDS = 5
"""Refresh interval of the list while a campaign runs, and of the speeds."""
IDLE_SECONDS = 10
PARTS = ("progress", "people", "samples", "refused")
"""Parts of the page that refresh, by element id."""
SEGMENT_LABELS = {"done": "done", "aside": "set aside", "held": "in progress", "waiting": "waiting"}
"""Labels of the packets by state: name in `CampaignProgress` -> text."""
CONTENT_TYPES = {
    dataset_files.CARD: "text/markdown; charset=utf-8",
    dataset_files.MANIFEST: "application/json",
    dataset_files.SET_ASIDE: "application/jsonl; charset=utf-8",
}


def get_started_campaign(slug: str) -> Campaign:
    """Return a campaign, or 404 if it is a draft."""
    return get_object_or_404(Campaign.objects.started(), slug=slug)


def list_campaigns() -> list[Campaign]:
    return list(Campaign.objects.started().defer("files").with_counts())


@require_safe
def campaigns(request: HttpRequest) -> HttpResponse:
    """List the campaigns that have started."""
    context = {
        "campaigns": list_campaigns(),
        **build_join_commands(),
        "credits": prompts.CREDITS,
        "revision": Event.get_latest_id(),
    }
    return render(request, "campaigns/campaigns.html", context)


@require_safe
def campaigns_live(request: HttpRequest) -> JsonResponse:
    rows = list_campaigns()
    parts = {"shelf": render_to_string("campaigns/campaigns.html#shelf", {"campaigns": rows})}
    is_running = any(row.state == Campaign.State.RUNNING for row in rows)
    wait = LIST_SECONDS if is_running else 2 * IDLE_SECONDS
    return JsonResponse({"parts": parts, "revision": Event.get_latest_id(), "wait": wait})


@require_safe
def campaign(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a campaign's progress, settings, samples, contributors and how to join."""
    found = get_started_campaign(slug)
    context = {
        **build_live_context(found),
        **build_join_commands(found),
        "facts": list_facts(found),
        "credits": dataset_files.list_credits(found),
        "hub_url": publishing.get_hub_url(found),
        "revision": found.state,
    }
    return render(request, "campaigns/campaign.html", context)


@require_safe
@condition(lambda *_, **__: f'"{Event.get_latest_id()}-{int(timezone.now().timestamp() / LIST_SECONDS)}"')
def campaign_live(request: HttpRequest, slug: str) -> JsonResponse:
    found = get_started_campaign(slug)
    context = build_live_context(found)
    parts = {part: render_to_string(f"campaigns/campaign.html#{part}", context) for part in PARTS}
    is_active = found.state == Campaign.State.RUNNING and context["progress"].volunteers_now
    # The state as revision: events elsewhere on the site change nothing but the parts.
    return JsonResponse({"parts": parts, "revision": found.state, "wait": LIVE_SECONDS if is_active else IDLE_SECONDS})


@require_POST
@never_cache
@require_login_from("campaign", "slug")
def campaign_join_command(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the join command with a token, so that the texts count as the user's."""
    assert request.user.is_authenticated
    found, token = get_started_campaign(slug), node_tokens.create_join_token(owner=request.user, for_packets=True)
    return render(request, "campaigns/join_command.html", {"campaign": found, **build_join_commands(found, token)})


def build_live_context(campaign: Campaign) -> dict[str, Any]:
    """Return the context of the parts that refresh."""
    progress = statistics.compute_progress(campaign)
    rejections = statistics.list_rejections(campaign)
    bar = build_progress_bar(progress)
    counts = ", ".join(f"{segment['packets']} {segment['label']}" for segment in bar)
    most = max((row["outputs"] for row in rejections), default=1)
    return {
        "campaign": campaign,
        "progress": progress,
        "bar": bar,
        "bar_label": f"Of {progress.packets} packets: {counts}",
        "contributors": statistics.list_contributors(campaign)[:MAX_CONTRIBUTORS],
        "samples": statistics.list_samples(campaign)[:MAX_SAMPLES],
        "rejections": [{**row, "width": f"{100 * row['outputs'] / most:.2f}"} for row in rejections],
        "submitted": progress.texts + progress.rejected,
    }


def build_progress_bar(progress: statistics.CampaignProgress) -> list[dict[str, Any]]:
    """Return the packets by state as segments of a bar, in percent."""
    segments, start = [], 0.0
    for name, label in SEGMENT_LABELS.items():
        packets = getattr(progress, name)
        width = 100 * packets / max(progress.packets, 1)
        segments.append(
            {"name": name, "label": label, "start": f"{start:.3f}", "width": f"{width:.3f}", "packets": packets}
        )
        start += width
    return segments


def list_facts(campaign: Campaign) -> list[tuple[str, str]]:
    """Return the settings that are frozen since the start."""
    source = ", ".join(filter(None, dataset_files.get_source_fields(campaign).values()))
    revision = f" at {campaign.model_revision}" if campaign.model_revision else ""
    sampling = f"{dataset_files.format_sampling(campaign)}, at most {campaign.max_tokens:,} tokens"
    sampling += f", {campaign.speculative_tokens} speculative tokens" if campaign.speculative_tokens else ""
    return [
        ("Source", source if campaign.source == Campaign.Source.HUB else f"files on this site: {source}"),
        ("Documents", dataset_files.format_dropped(campaign)),
        ("Quality", ", ".join(campaign.quality_buckets) or "all text"),
        ("Chunks", f"about {campaign.chunk_tokens} tokens, cut at sentence ends"),
        ("Styles", ", ".join(campaign.styles)),
        ("Prompts", f"version {campaign.prompt_version}"),
        ("Model", f"{campaign.model}{revision}"),
        ("Sampling", sampling),
        ("License", campaign.license),
    ]


# --- how to join -----------------------------------------------------------------------------------------------------


def build_join_commands(campaign: Campaign | None = None, token: str = "") -> dict[str, str]:
    """Return the commands for any campaign or a certain one, with Python and with Docker."""
    join = ["--server", settings.SITE_URL, *(["--campaign", campaign.slug] if campaign else [])]
    join += ["--token", token] if token else []
    docker = ["--rm", "-it", "--gpus", "all", "-v", "dailytrain-volunteer:/home/node/data"]
    docker += build_container_options()
    image = settings.VOLUNTEER_IMAGE
    return {
        "join_command": shlex.join(["dailytrain", "rephrase", "join", *join]),
        "docker_command": shlex.join(["docker", "run", *docker, image, *join]) if image else "",
    }


# --- dataset files ---------------------------------------------------------------------------------------------------


@require_safe
def campaign_file(request: HttpRequest, slug: str, path: str) -> HttpResponseBase:
    """Send a file of the dataset. A shard supports `Range: bytes=<first>-`, to resume a download."""
    if (too_many := build_rate_limit_response(request, "download")) is not None:
        return too_many
    found = get_started_campaign(slug)
    shards = list(found.shards.current())
    if path in CONTENT_TYPES and shards:
        content = dataset_files.build_text_files(found, shards)[path]
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        response = HttpResponse(content, content_type=CONTENT_TYPES[path], headers={"ETag": etag})
        return get_conditional_response(request, etag=etag, response=response) or response
    blob = next((shard.blob for shard in shards if shard.name == path), None)
    if blob is None:
        raise Http404
    if not_modified := get_conditional_response(request, etag=f'"{blob.sha256}"'):
        return not_modified
    if url := storage.get_presigned_url(blob):
        return HttpResponseRedirect(url)
    try:
        return downloads.send_blob(request, blob)
    except RangeError as error:
        return HttpResponse(f"{error}\n", status=error.status, content_type="text/plain")
