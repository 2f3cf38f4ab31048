"""Messages about a subscription itself."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.urls import reverse

from leaderboard.models import Subscription
from leaderboard.notifications import email_links
from leaderboard.notifications.message import Message


def compose_confirmation(subscription: Subscription) -> Message | None:
    """Return the e-mail that asks to confirm an address."""
    if subscription.confirmed_at is not None:
        return None
    request = f"{subscription.user.get_username()} has asked {settings.SITE_NAME} to send notices to this address."
    return Message(
        title=f"Notices from {settings.SITE_NAME}?",
        lines=(request, "To confirm, follow the link within three days. To decline, ignore this e-mail."),
        url=email_links.build_link(subscription, "confirm"),
    )


def compose_test_notice(subscription: Subscription) -> Message | None:
    line = "This is a test. Notices arrive here."
    return Message(f"A notice from {settings.SITE_NAME}", (line,), settings.SITE_URL + reverse("notices"))


SYSTEM_MESSAGES: dict[str, Callable[[Subscription], Message | None]] = {
    "confirm": compose_confirmation,
    "trial": compose_test_notice,
}
