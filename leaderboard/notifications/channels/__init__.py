"""Channels of notices: one module each, registered here and in `Subscription.Kind`."""

from __future__ import annotations

from typing import Protocol

from leaderboard.models import Subscription
from leaderboard.notifications.channels import discord, email, slack, webhook
from leaderboard.notifications.message import Message


class Channel(Protocol):
    """A module."""

    @property
    def ADDRESS(self) -> str:
        """The address field's label in the form; says where to find the address."""

    def is_available(self) -> bool:
        """Return whether this site can send through this channel."""

    def clean_address(self, address: str) -> str:
        """Return the normalized address. Raises ValueError with a message for its owner."""

    def mask_address(self, address: str) -> str:
        """Return the address without its secret parts."""

    def send(self, message: Message, subscription: Subscription, delivery: int) -> None:
        """Send a message. `delivery`: its id, the same in each attempt. Raises DeliveryError."""


CHANNELS: dict[str, Channel] = {
    Subscription.Kind.DISCORD: discord,
    Subscription.Kind.SLACK: slack,
    Subscription.Kind.EMAIL: email,
    Subscription.Kind.WEBHOOK: webhook,
}
