"""What the site sends about a subscription itself."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.urls import reverse

from leaderboard.models import Subscription
from leaderboard.notifications import email_links
from leaderboard.notifications.message import Message


def compose_confirmation(subscription: Subscription) -> Message | None:
    """Ask whether an e-mail address wants this at all."""
    if subscription.confirmed_at is not None:
        return None
    asks = f"{subscription.user.get_username()} has asked {settings.SITE_NAME} to send notices to this address."
    return Message(
        title=f"Notices from {settings.SITE_NAME}?",
        lines=(asks, "If that is right, follow the link within three days. If not, do nothing: no more letters come."),
        url=email_links.build_link(subscription, "confirm"),
    )


def compose_test_notice(subscription: Subscription) -> Message | None:
    said = "This is what you asked to see: notices arrive here."
    return Message(f"A notice from {settings.SITE_NAME}", (said,), settings.SITE_URL + reverse("notices"))


SYSTEM_MESSAGES: dict[str, Callable[[Subscription], Message | None]] = {
    "confirm": compose_confirmation,
    "trial": compose_test_notice,
}
