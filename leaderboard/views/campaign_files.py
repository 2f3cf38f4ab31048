"""A campaign's dataset, from the site itself: the same files as on the Hub, for those who have no account there."""

from __future__ import annotations

import hashlib

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_safe

from leaderboard.views.campaigns import begun
from leaderboard.views.rate_limits import refusal
from scheduler import storage
from scheduler.campaigns import dataset
from scheduler.errors import RangeError
from scheduler.models import Campaign
from scheduler.models.jobs import Blob
from scheduler.node_api import downloads

TYPES = {
    dataset.CARD: "text/markdown; charset=utf-8",
    dataset.MANIFEST: "application/json",
    dataset.SET_ASIDE: "application/jsonl; charset=utf-8",
}


@require_safe
def file(request: HttpRequest, slug: str, path: str) -> HttpResponseBase:
    """A shard, the manifest, the card, or what was set aside; `Range: bytes=<first>-` goes on where it broke."""
    if (refused := refusal(request, "download")) is not None:
        return refused
    found = begun(slug)
    shards = {shard.name: shard.blob for shard in dataset.shards(found)}
    if path in TYPES and shards:
        return words(request, found, path)
    blob = shards.get(path)
    if blob is None:
        raise Http404
    return shard(request, blob)


def shard(request: HttpRequest, blob: Blob) -> HttpResponseBase:
    if kept := get_conditional_response(request, etag=f'"{blob.sha256}"'):
        return kept
    if address := storage.get_presigned_url(blob):
        return HttpResponseRedirect(address)
    try:
        return downloads.send_blob(request, blob)
    except RangeError as error:
        return HttpResponse(f"{error}\n", status=error.status, content_type="text/plain")


def words(request: HttpRequest, found: Campaign, path: str) -> HttpResponseBase:
    """Return what is said of the shards that there are now: small, so all of it."""
    content = dataset.words(found, dataset.shards(found))[path]
    answer = HttpResponse(content, content_type=TYPES[path])
    answer.headers["ETag"] = f'"{hashlib.sha256(content).hexdigest()}"'
    conditional = get_conditional_response(request, etag=answer.headers["ETag"], response=answer)
    return conditional or answer
