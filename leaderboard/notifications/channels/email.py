"""E-mail through the site's SMTP server (`MAIL_URL`), to confirmed addresses only."""

from __future__ import annotations

from urllib.parse import quote

from apprise.plugins.email import NotifyEmail
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from leaderboard.models import Subscription
from leaderboard.notifications import email_links
from leaderboard.notifications.channels import apprise_channel
from leaderboard.notifications.message import Message

ADDRESS = "Address: it gets an e-mail with a confirmation link first"


def is_available() -> bool:
    return bool(settings.MAIL_URL)


def clean_address(address: str) -> str:
    address = address.strip()
    try:
        validate_email(address)
    except ValidationError:
        raise ValueError("That is not an e-mail address.") from None
    return address


def mask_address(address: str) -> str:
    name, _, host = address.partition("@")
    return f"{name[:2]}…@{host}"


def send(message: Message, subscription: Subscription, delivery: int) -> None:
    more = "&" if "?" in settings.MAIL_URL else "?"
    address = f"{settings.MAIL_URL}{more}to={quote(subscription.address)}&format=text"
    foot = f"\n--\n{settings.SITE_NAME}. To unsubscribe: {email_links.build_stop_link(subscription)}"
    body = "\n\n".join([*message.lines, message.url, foot])
    apprise_channel.send_notice(NotifyEmail, address, " ".join(message.title.split()), body, message.files)
