"""A channel of a Discord server, by its webhook URL."""

from __future__ import annotations

import re

from apprise.plugins.discord import NotifyDiscord

from leaderboard.models import Subscription
from leaderboard.notifications.channels import apprise_channel
from leaderboard.notifications.message import Message

ADDRESS = "Webhook address: in Discord under Edit channel, Integrations, Webhooks, Copy URL"

HOOK = re.compile(
    r"https://(?:ptb\.|canary\.)?discord(?:app)?\.com/api/(?:v\d+/)?webhooks/(\d{15,22})/([\w-]{40,100})/?"
)
MARKS = re.compile(r"([\\*_`~|>#\[\]()<:])")
"""Discord's markup."""
INERT_AT = "@\u200b"
"""Followed by a zero-width space, so that no title can mention everyone."""


def is_available() -> bool:
    return True


def clean_address(address: str) -> str:
    found = HOOK.fullmatch(address.strip())
    if found is None:
        raise ValueError("A Discord address looks like https://discord.com/api/webhooks/123…/abc…: copy it from there.")
    return f"https://discord.com/api/webhooks/{found[1]}/{found[2]}"


def mask_address(address: str) -> str:
    return f"discord.com, webhook {address.split('/')[-2]}"


def send(message: Message, subscription: Subscription, delivery: int) -> None:
    webhook, token = subscription.address.split("/")[-2:]
    body = "\n".join([*(escape_text(line) for line in message.lines), message.url])
    address = f"discord://{webhook}/{token}/?avatar=no&footer=no&format=text"
    apprise_channel.send_notice(NotifyDiscord, address, f"**{escape_text(message.title)}**", body, message.files)


def escape_text(text: str) -> str:
    return MARKS.sub(r"\\\1", text).replace("@", INERT_AT)
