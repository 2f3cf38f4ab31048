"""The base class of channels."""

from __future__ import annotations

from leaderboard.models import Subscription
from leaderboard.notifications.message import Message


class Channel:
    """A way to send notices. Each is registered in `CHANNELS` and in `Subscription.Kind`."""

    hint: str
    """The address field's label in the form; says where to find the address."""

    def is_available(self) -> bool:
        """Return whether this site can send through this channel."""
        return True

    def clean_address(self, address: str) -> str:
        """Return the normalized address. Raises ValueError with a message for its owner."""
        raise NotImplementedError

    def mask_address(self, address: str) -> str:
        """Return the address without its secret parts."""
        raise NotImplementedError

    def send(self, message: Message, subscription: Subscription) -> None:
        """Send a message. Raises DeliveryError."""
        raise NotImplementedError
