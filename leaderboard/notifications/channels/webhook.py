"""A program of the subscriber's own: JSON over HTTPS, signed, so that it can know who speaks (docs/notices.md).

The address is a stranger's: only hosts on the public internet are called, at the very address that was checked, no
redirect is followed, and nothing of the answer but its status is read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import socket
from urllib.parse import urlsplit, urlunsplit

import httpx
from django.conf import settings
from django.utils import timezone

from leaderboard.models import Subscription
from leaderboard.notifications.delivery_errors import Undelivered
from leaderboard.notifications.message import Message

ADDRESS = "Address: takes a POST with JSON"
VERSION = 1
SECONDS = 10.0
GONE = (404, 410)
WHOLE_FILES = 2**20
"""Files that together are larger come as addresses only."""


def is_there() -> bool:
    return True


def cleaned(address: str) -> str:
    address = address.strip()
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise ValueError("That is not a web address.") from None
    if parts.scheme not in schemes() or not parts.hostname or port == 0 or not address.isprintable():
        raise ValueError("The address begins with https:// and names a host.")
    if parts.username or parts.password or parts.fragment:
        raise ValueError("The address carries no name, password or fragment: deliveries are signed instead.")
    return address


def schemes() -> tuple[str, ...]:
    return ("https", "http") if settings.NOTICES_TO_PRIVATE_HOSTS else ("https",)


def shown(address: str) -> str:
    return f"{urlsplit(address).hostname}/…"


def send(message: Message, subscription: Subscription, delivery: int) -> None:
    body = json.dumps(content(message), ensure_ascii=False).encode()
    at = f"{timezone.now().timestamp():.0f}"
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "daily-train",
        "X-Daily-Train-Delivery": str(delivery),
        "X-Daily-Train-Timestamp": at,
        "X-Daily-Train-Signature-256": f"sha256={signature(subscription.secret, at, body)}",
    }
    status = post(subscription.address, body, headers)
    if not 200 <= status < 300:
        raise Undelivered(f"The address answered {status}.", for_good=status in GONE)


def content(message: Message) -> dict[str, object]:
    whole = sum(len(file.contents) for file in message.files) <= WHOLE_FILES
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


def signature(secret: str, at: str, body: bytes) -> str:
    """Of the time and the body together, so that an old delivery cannot be sent again as a new one."""
    return hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()


def post(address: str, body: bytes, headers: dict[str, str]) -> int:
    """Return the status of the answer. The host is called by the address that was looked at, its name asked no more."""
    parts = urlsplit(address)
    assert parts.hostname, "it was cleaned"
    number = public_address(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    host = f"[{number}]" if ":" in number else number
    target = urlunsplit(parts._replace(netloc=f"{host}:{parts.port}" if parts.port else host))
    try:
        with (
            httpx.Client(trust_env=False, follow_redirects=False, timeout=SECONDS) as http,
            http.stream(
                "POST",
                target,
                content=body,
                headers={**headers, "Host": parts.netloc},
                extensions={"sni_hostname": parts.hostname},
            ) as answer,
        ):
            return answer.status_code
    except httpx.HTTPError as error:
        raise Undelivered(f"The address could not be reached: {type(error).__name__}.") from error


def public_address(host: str, port: int) -> str:
    """Return one numerical address of a host on the public internet."""
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        raise Undelivered(f"The host {host} is not known.") from None
    if not settings.NOTICES_TO_PRIVATE_HOSTS and not all(ipaddress.ip_address(number).is_global for number in found):
        raise Undelivered(f"The host {host} is not on the public internet.")
    return found[0]
