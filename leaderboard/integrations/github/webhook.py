"""`POST /github/webhook`: verify and store deliveries. They are processed in the background.

https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
from typing import Any, NoReturn

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from leaderboard.integrations.github import deliveries
from leaderboard.sanitize import replace_unstorable_in_json

EVENT = re.compile(r"[a-z0-9_]{1,60}")


class WebhookError(Exception):
    """The delivery is refused; the message appears in GitHub's list of deliveries."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@csrf_exempt
@require_POST
def webhook(request: HttpRequest) -> JsonResponse:
    """Answer 202 for new deliveries and 200 for repeated ones. Only the database is involved."""
    try:
        body = read_signed_body(request)
        event = parse_event(request)
        payload = parse_payload(request, body)
    except WebhookError as error:
        return JsonResponse({"detail": str(error)}, status=error.status)
    if event in deliveries.EVENTS and deliveries.store_delivery(event, body, payload) is None:
        return JsonResponse({"detail": "This delivery has been here before."})
    return JsonResponse({"detail": "Thank you."}, status=202)


def read_signed_body(request: HttpRequest) -> bytes:
    secret = settings.GITHUB_WEBHOOK_SECRET
    if not secret:
        raise WebhookError(503, "This site has no webhook secret: set GITHUB_WEBHOOK_SECRET.")
    too_large = WebhookError(413, "This delivery is larger than the site accepts.")
    length = request.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) > settings.GITHUB_WEBHOOK_MAX_BYTES:
        raise too_large
    try:
        body = request.body
    except RequestDataTooBig:
        raise too_large from None
    if len(body) > settings.GITHUB_WEBHOOK_MAX_BYTES:
        raise too_large
    signature = request.headers.get("X-Hub-Signature-256", "").encode("utf-8", "replace")
    expected = f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}".encode()
    if not hmac.compare_digest(signature, expected):
        raise WebhookError(401, "Invalid signature: the webhook's secret and GITHUB_WEBHOOK_SECRET must be the same.")
    return body


def parse_event(request: HttpRequest) -> str:
    event = request.headers.get("X-GitHub-Event", "")
    if not EVENT.fullmatch(event):
        raise WebhookError(400, "X-GitHub-Event must say what this is.")
    return event


def parse_payload(request: HttpRequest, body: bytes) -> dict[str, Any]:
    if request.content_type != "application/json":
        raise WebhookError(415, "Set the webhook's content type to application/json.")
    try:
        payload = replace_unstorable_in_json(json.loads(body, parse_constant=reject_constant, parse_float=parse_finite))
    except (ValueError, RecursionError):
        raise WebhookError(400, "The body is not JSON.") from None
    if not isinstance(payload, dict):
        raise WebhookError(400, "The body must be a JSON object.")
    return payload


def parse_finite(digits: str) -> float:
    """Parse a number; `1e999` is JSON, but no database stores it."""
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits} is too large")
    return number


def reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
