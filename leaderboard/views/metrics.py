"""Metrics for Prometheus."""

from __future__ import annotations

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from leaderboard.monitoring.metrics import format_metrics


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics to clients that send METRICS_TOKEN. Without that setting the page does not exist (404)."""
    if not settings.METRICS_TOKEN:
        raise Http404
    if not constant_time_compare(request.headers.get("Authorization", ""), f"Bearer {settings.METRICS_TOKEN}"):
        return HttpResponse(status=401, headers={"WWW-Authenticate": "Bearer"})
    return HttpResponse(format_metrics(), content_type=CONTENT_TYPE_LATEST)
