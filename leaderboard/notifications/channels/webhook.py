"""A webhook: signed JSON over HTTPS (docs/how-to/notices.md).

Against SSRF it calls only hosts on the public internet, by the IP address that was checked. It follows no redirect and
reads only the response's status.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from urllib.parse import urlsplit, urlunsplit

import httpx
from django.conf import settings
from django.utils import timezone

from leaderboard.models import Subscription
from leaderboard.notifications.channels.base import Channel
from leaderboard.notifications.message import DeliveryError, Message
from leaderboard.public_hosts import HostError, build_pinned_request, resolve_host, resolve_public_host

VERSION = 1
TIMEOUT_SECONDS = 10.0
PERMANENT_STATUSES = (404, 410)
MAX_FILE_BYTES = 2**20
"""Limit of all files together; larger ones are sent as links only."""


class WebhookChannel(Channel):
    hint = "Address: takes a POST with JSON"

    def clean_address(self, address: str) -> str:
        address = address.strip()
        schemes = ("https", "http") if settings.NOTICES_TO_PRIVATE_HOSTS else ("https",)
        try:
            parts = urlsplit(address)
            port = parts.port
        except ValueError:
            raise ValueError("That is not a web address.") from None
        if parts.scheme not in schemes or not parts.hostname or port == 0 or not address.isprintable():
            raise ValueError("The address must begin with https:// and name a host.")
        if parts.username or parts.password or parts.fragment:
            raise ValueError("The address must not contain a user name, password or fragment. Deliveries are signed.")
        return address if parts.netloc.isascii() else encode_host(address)

    def mask_address(self, address: str) -> str:
        return f"{urlsplit(address).hostname}/…"

    def send(self, message: Message, subscription: Subscription, delivery: int) -> None:
        body = json.dumps(build_payload(message), ensure_ascii=False).encode()
        at = f"{timezone.now().timestamp():.0f}"
        signature = hmac.new(subscription.secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "daily-train",
            "X-Daily-Train-Delivery": str(delivery),
            "X-Daily-Train-Timestamp": at,  # signed too, against replays
            "X-Daily-Train-Signature-256": f"sha256={signature}",
        }
        status = post_payload(subscription.address, body, headers)
        if not 200 <= status < 300:
            raise DeliveryError(f"The address answered {status}.", is_permanent=status in PERMANENT_STATUSES)


def encode_host(address: str) -> str:
    """Return the address with its international host name as DNS, TLS and the header `Host` have it."""
    parts = urlsplit(address)
    try:
        host = httpx.URL(address).raw_host.decode()
    except httpx.InvalidURL:
        raise ValueError("The address names a host that cannot exist.") from None
    return urlunsplit(parts._replace(netloc=host if parts.port is None else f"{host}:{parts.port}"))


def build_payload(message: Message) -> dict[str, object]:
    whole = sum(len(file.contents) for file in message.files) <= MAX_FILE_BYTES
    return {
        "version": VERSION,
        "title": message.title,
        "lines": list(message.lines),
        "url": message.url,
        "facts": dict(message.facts),
        "files": [
            {
                "name": file.name,
                "content_type": file.content_type,
                "url": file.url,
                "base64": base64.b64encode(file.contents).decode() if whole else None,
            }
            for file in message.files
        ],
    }


def post_payload(address: str, body: bytes, headers: dict[str, str]) -> int:
    """Return the response's status. Connects to the checked IP address, so DNS rebinding has no effect."""
    parts = urlsplit(address)
    assert parts.hostname, "checked by clean_address"
    ip = resolve_address(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    request = build_pinned_request(address, ip)
    request["headers"] |= headers
    try:
        with (
            httpx.Client(trust_env=False, follow_redirects=False, timeout=TIMEOUT_SECONDS) as http,
            http.stream("POST", content=body, **request) as response,
        ):
            return response.status_code
    except httpx.HTTPError as error:
        raise DeliveryError(f"The address could not be reached: {type(error).__name__}.") from error


def resolve_address(host: str, port: int) -> str:
    try:
        return resolve_host(host, port)[0] if settings.NOTICES_TO_PRIVATE_HOSTS else resolve_public_host(host, port)
    except HostError as error:
        raise DeliveryError(str(error)) from None
