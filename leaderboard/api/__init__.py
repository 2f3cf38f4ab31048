"""The JSON API of the site, under `/api/v1/`: all public data, and run requests of CI jobs.

One module per subject. Responses carry an ETag: send it as `If-None-Match` to get 304 until something has changed.
Lists are paginated (`pagination`). URLs and keys are stable; new ones may be added.
"""

from __future__ import annotations

from django.conf import settings
from ninja import NinjaAPI

from leaderboard.api import entries, pool, root, run_requests, runs, throttles, tracks
from leaderboard.api.documentation import DocumentationPage
from leaderboard.api.errors import add_error_handlers
from scheduler.campaigns import public_routes

DESCRIPTION = """Runs, curves and scores, readable without a token. Times are ISO 8601 in UTC. FLOPs and seconds are
plain numbers. Losses are nats per token unless they are called bits per byte. An error is one message, in `detail`."""

api = NinjaAPI(
    title=settings.SITE_NAME,
    version="1",
    urls_namespace="api",
    description=DESCRIPTION,
    docs=DocumentationPage(),
    throttle=[throttles.AddressThrottle()],
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
runs.router.post("/runs", **run_requests.OPERATION)(run_requests.request_run)
add_error_handlers(api)
