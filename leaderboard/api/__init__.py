"""The site's JSON, under `/api/v1/`: the public record for machines, and the way in for CI jobs.

One file per subject, put together here. Whatever can change carries an ETag: ask again with `If-None-Match` and get 304
until it has. Lists come in pages (`paging`). Addresses and keys stay what they are; new ones may join them.
"""

from __future__ import annotations

from django.conf import settings
from ninja import NinjaAPI

from leaderboard.api import entries, pool, root, run_requests, runs, throttles, tracks
from leaderboard.api.documentation import Pages
from leaderboard.api.errors import tell
from scheduler.campaigns import public_routes

DESCRIPTION = """Runs, curves and scores, for reading without a token. Times are ISO 8601 in UTC, FLOPs and seconds are
plain numbers, losses are nats per token unless they are called bits per byte. Errors are one sentence, in `detail`."""

api = NinjaAPI(
    title=settings.SITE_NAME,
    version="1",
    urls_namespace="api",
    description=DESCRIPTION,
    docs=Pages(),
    throttle=[throttles.PerReader()],
)
for router, subject in (
    (root.router, "Start"),
    (tracks.router, "Tracks and boards"),
    (entries.router, "Entries"),
    (runs.router, "Runs"),
    (pool.router, "The pool"),
    (public_routes.router, "Campaigns"),
):
    api.add_router("", router, tags=[subject])
# Beside the list of runs, at the same address.
runs.router.post("/runs", **run_requests.TERMS)(run_requests.ask)
tell(api)
