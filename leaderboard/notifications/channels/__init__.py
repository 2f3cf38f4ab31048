"""How a notice gets to where it is wanted: one file each, one line here (and in `Subscription.Kind`)."""

from __future__ import annotations

from typing import Protocol

from leaderboard.models import Subscription
from leaderboard.notifications.channels import discord, email, slack, webhook
from leaderboard.notifications.message import Message


class Channel(Protocol):
    """A module."""

    @property
    def ADDRESS(self) -> str:
        """What the address is called, and how one comes by it: a label for the form."""

    def is_available(self) -> bool:
        """Whether this site can send there at all."""

    def clean_address(self, address: str) -> str:
        """Return the address as it is kept; raise ValueError, with a sentence for its owner, if it cannot be one."""

    def mask_address(self, address: str) -> str:
        """Return as much of the address as anybody may see."""

    def send(self, message: Message, subscription: Subscription, delivery: int) -> None:
        """Send it, or raise Undelivered. `delivery` is the same each time that the same notice is tried."""


CHANNELS: dict[str, Channel] = {
    Subscription.Kind.DISCORD: discord,
    Subscription.Kind.SLACK: slack,
    Subscription.Kind.EMAIL: email,
    Subscription.Kind.WEBHOOK: webhook,
}
