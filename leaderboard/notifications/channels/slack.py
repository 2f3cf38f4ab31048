"""A channel of a Slack workspace, by an incoming webhook. It accepts no files, so the message has links."""

from __future__ import annotations

import re

from apprise.plugins.slack import NotifySlack

from leaderboard.models import Subscription
from leaderboard.notifications.channels import apprise_channel
from leaderboard.notifications.message import Message

ADDRESS = "Webhook address: in Slack add the app Incoming WebHooks to a channel and copy its URL"

HOOK = re.compile(r"https://hooks\.slack\.com/services/(T[A-Z0-9]{6,12})/(B[A-Z0-9]{6,12})/([A-Za-z0-9]{20,40})/?")
BRACKETS = str.maketrans({"<": "‹", ">": "›", "@": "@\u200b"})
"""Slack mentions everyone by `<!channel>` and writes links as `<URL|text>`."""


def is_available() -> bool:
    return True


def clean_address(address: str) -> str:
    found = HOOK.fullmatch(address.strip())
    if found is None:
        raise ValueError("A Slack address looks like https://hooks.slack.com/services/T…/B…/…: copy it from there.")
    return f"https://hooks.slack.com/services/{found[1]}/{found[2]}/{found[3]}"


def mask_address(address: str) -> str:
    return f"hooks.slack.com, workspace {address.split('/')[-3]}"


def send(message: Message, subscription: Subscription, delivery: int) -> None:
    team, app, secret = subscription.address.split("/")[-3:]
    lines = [line.translate(BRACKETS) for line in message.lines]
    links = [f"{file.name}: {file.url}" for file in message.files]
    address = f"slack://{team}/{app}/{secret}/?image=no&footer=no&blocks=no"
    apprise_channel.send_notice(
        NotifySlack, address, message.title.translate(BRACKETS), "\n".join([*lines, message.url, *links])
    )
