"""Signed links in e-mails, each for one subscription. They need no sign-in."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.core import signing
from django.urls import reverse
from django.utils.crypto import salted_hmac

from leaderboard.models import Subscription

CONFIRM_WITHIN = timedelta(days=3)
ACTIONS = ("confirm", "stop")


def build_link(subscription: Subscription, action: str) -> str:
    token = signing.dumps([subscription.pk, hash_address(subscription)], salt=f"notices.{action}")
    return settings.SITE_URL + reverse("notice-link", args=[action, token])


def find_subscription(action: str, token: str) -> Subscription | None:
    """Return the link's subscription; None if the link is invalid or has expired."""
    age = CONFIRM_WITHIN if action == "confirm" else None
    try:
        pk, digest = signing.loads(token, salt=f"notices.{action}", max_age=age)
    except signing.BadSignature:
        return None
    subscription = Subscription.objects.filter(pk=pk).first()
    return subscription if subscription and hash_address(subscription) == digest else None


def hash_address(subscription: Subscription) -> str:
    """Return a keyed hash of the address. Links are written to access logs, where the address does not belong."""
    return salted_hmac("notices.address", subscription.address, algorithm="sha256").hexdigest()[:32]
