"""Channels that send with apprise: Discord, Slack, e-mail.

Each names its plugin, so apprise does not load its hundreds of plugins, some of which start programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote

import apprise
from apprise.attachment.memory import AttachMemory
from apprise.plugins.base import NotifyBase
from apprise.plugins.discord import NotifyDiscord
from apprise.plugins.email import NotifyEmail
from apprise.plugins.slack import NotifySlack
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from leaderboard.models import Subscription
from leaderboard.notifications import email_links
from leaderboard.notifications.channels.base import Channel
from leaderboard.notifications.message import Attachment, DeliveryError, Message

PERMANENT_ERROR = re.compile(r"error=(401|403|404|410)\b")
"""Log lines of apprise about addresses that will never work."""
SEPARATORS = re.compile(r"[\s\",;]")
INERT_AT = "@\u200b"
"""Followed by a zero-width space, so that no title can mention everyone."""


class DiscordChannel(Channel):
    """A channel of a Discord server, by its webhook URL."""

    hint = "Webhook address: in Discord under Edit channel, Integrations, Webhooks, Copy URL"
    pattern = re.compile(
        r"https://(?:ptb\.|canary\.)?discord(?:app)?\.com/api/(?:v\d+/)?webhooks/(\d{15,22})/([\w-]{40,100})/?"
    )

    def clean_address(self, address: str) -> str:
        found = self.pattern.fullmatch(address.strip())
        if found is None:
            raise ValueError(
                "A Discord address looks like https://discord.com/api/webhooks/123…/abc…: copy it from there."
            )
        return f"https://discord.com/api/webhooks/{found[1]}/{found[2]}"

    def mask_address(self, address: str) -> str:
        return f"discord.com, webhook {address.split('/')[-2]}"

    def send(self, message: Message, subscription: Subscription) -> None:
        webhook, token = subscription.address.split("/")[-2:]
        body = "\n".join([*map(escape_discord_markup, message.lines), message.url])
        address = f"discord://{webhook}/{token}/?avatar=no&footer=no&format=text"
        send_with_apprise(NotifyDiscord, address, f"**{escape_discord_markup(message.title)}**", body, message.files)


def escape_discord_markup(text: str) -> str:
    return re.sub(r"([\\*_`~|>#\[\]()<:])", r"\\\1", text).replace("@", INERT_AT)


class SlackChannel(Channel):
    """A channel of a Slack workspace, by an incoming webhook. It accepts no files, so the message has links."""

    hint = "Webhook address: in Slack add the app Incoming WebHooks to a channel and copy its URL"
    pattern = re.compile(
        r"https://hooks\.slack\.com/services/(T[A-Z0-9]{6,12})/(B[A-Z0-9]{6,12})/([A-Za-z0-9]{20,40})/?"
    )
    escapes = str.maketrans({"<": "‹", ">": "›", "@": INERT_AT})
    """Slack mentions everyone by `<!channel>` and writes links as `<URL|text>`."""

    def clean_address(self, address: str) -> str:
        found = self.pattern.fullmatch(address.strip())
        if found is None:
            raise ValueError("A Slack address looks like https://hooks.slack.com/services/T…/B…/…: copy it from there.")
        return f"https://hooks.slack.com/services/{found[1]}/{found[2]}/{found[3]}"

    def mask_address(self, address: str) -> str:
        return f"hooks.slack.com, workspace {address.split('/')[-3]}"

    def send(self, message: Message, subscription: Subscription) -> None:
        team, app, secret = subscription.address.split("/")[-3:]
        lines = [line.translate(self.escapes) for line in message.lines]
        body = "\n".join([*lines, message.url, *(f"{file.name}: {file.url}" for file in message.files)])
        address = f"slack://{team}/{app}/{secret}/?image=no&footer=no&blocks=no"
        send_with_apprise(NotifySlack, address, message.title.translate(self.escapes), body)


class EmailChannel(Channel):
    """E-mail through the site's SMTP server (`MAIL_URL`), to confirmed addresses only."""

    hint = "Address: it gets an e-mail with a confirmation link first"

    def is_available(self) -> bool:
        return bool(settings.MAIL_URL)

    def clean_address(self, address: str) -> str:
        address = address.strip()
        try:
            validate_email(address)
        except ValidationError:
            raise ValueError("That is not an e-mail address.") from None
        if SEPARATORS.search(address):  # valid in quotes, but apprise would send to several addresses
            raise ValueError("The address must not contain quotes, commas, semicolons or spaces.")
        return address

    def mask_address(self, address: str) -> str:
        name, _, host = address.partition("@")
        return f"{name[:2]}…@{host}"

    def send(self, message: Message, subscription: Subscription) -> None:
        more = "&" if "?" in settings.MAIL_URL else "?"
        address = f"{settings.MAIL_URL}{more}to={quote(subscription.address)}&format=text"
        foot = f"\n--\n{settings.SITE_NAME}. To unsubscribe: {email_links.build_link(subscription, 'stop')}"
        body = "\n\n".join([*message.lines, message.url, foot])
        send_with_apprise(NotifyEmail, address, " ".join(message.title.split()), body, message.files)


def send_with_apprise(
    plugin: type[NotifyBase], address: str, title: str, body: str, files: Iterable[Attachment] = ()
) -> None:
    """Send with a plugin to an apprise URL, which appears in no log. Raises DeliveryError."""
    asset = apprise.AppriseAsset(  # without apprise's own name, images and plugin files
        app_id=settings.SITE_NAME,
        app_desc=settings.SITE_NAME,
        app_url=settings.SITE_URL,
        image_url_mask="",
        image_url_logo="",
        plugin_paths=[],
        secure_logging=True,
    )
    parsed = plugin.parse_url(address)
    if not parsed:
        raise DeliveryError("The address is not one that can be sent to.", is_permanent=True)
    attached = [
        AttachMemory(file.contents, name=file.name, mimetype=file.content_type)  # type: ignore[no-untyped-call]
        for file in files
    ]
    sender = apprise.Apprise(plugin(**{**parsed, "asset": asset}), asset=asset)
    result = sender.notify(body=body, title=title, body_format="text", attach=attached or None)
    if result:
        return
    if any(PERMANENT_ERROR.search(str(entry.message)) for entry in result.logs()):
        raise DeliveryError("The address is no longer valid.", is_permanent=True)
    raise DeliveryError("The service did not accept the message.")
