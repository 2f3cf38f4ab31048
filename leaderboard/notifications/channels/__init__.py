"""Channels of notices."""

from __future__ import annotations

from leaderboard.models import Subscription
from leaderboard.notifications.channels.apprise_channels import DiscordChannel, EmailChannel, SlackChannel
from leaderboard.notifications.channels.base import Channel

CHANNELS: dict[str, Channel] = {
    Subscription.Kind.DISCORD: DiscordChannel(),
    Subscription.Kind.SLACK: SlackChannel(),
    Subscription.Kind.EMAIL: EmailChannel(),
}
