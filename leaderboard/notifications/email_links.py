"""Links in letters, good for one subscription: whoever can read the letter may follow them, signed in or not."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.core import signing
from django.urls import reverse

from leaderboard.models import Subscription

CONFIRM_WITHIN = timedelta(days=3)
ACTIONS = ("confirm", "stop")


def build_link(subscription: Subscription, word: str) -> str:
    token = signing.dumps([subscription.pk, subscription.address], salt=f"notices.{word}")
    return settings.SITE_URL + reverse("notice-letter", args=[word, token])


def build_stop_link(subscription: Subscription) -> str:
    return build_link(subscription, "stop")


def find_subscription(word: str, token: str) -> Subscription | None:
    """Return whose link this is; None where it is nobody's, or too old."""
    age = CONFIRM_WITHIN if word == "confirm" else None
    try:
        pk, written_to = signing.loads(token, salt=f"notices.{word}", max_age=age)
    except signing.BadSignature:
        return None
    return Subscription.objects.filter(pk=pk, address=written_to).first()
