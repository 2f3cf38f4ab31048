"""Signed links in e-mails, each for one subscription. They need no sign-in."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.core import signing
from django.urls import reverse

from leaderboard.models import Subscription

CONFIRM_WITHIN = timedelta(days=3)
ACTIONS = ("confirm", "stop")


def build_link(subscription: Subscription, action: str) -> str:
    token = signing.dumps([subscription.pk, subscription.address], salt=f"notices.{action}")
    return settings.SITE_URL + reverse("notice-letter", args=[action, token])


def find_subscription(action: str, token: str) -> Subscription | None:
    """Return the link's subscription; None if the link is invalid or has expired."""
    age = CONFIRM_WITHIN if action == "confirm" else None
    try:
        pk, address = signing.loads(token, salt=f"notices.{action}", max_age=age)
    except signing.BadSignature:
        return None
    return Subscription.objects.filter(pk=pk, address=address).first()
