"""The content of a notice, independent of its channel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attachment:
    name: str
    content_type: str
    url: str
    """URL for channels without attachments."""
    contents: bytes


@dataclass(frozen=True)
class Message:
    """Plain text. It contains untrusted titles and reasons, so each channel escapes it."""

    title: str
    lines: tuple[str, ...]
    """A sentence or two each."""
    url: str
    """URL of the page with details."""
    files: tuple[Attachment, ...] = ()


class DeliveryError(Exception):
    """A notice was not delivered; the subscriber reads the message. `is_permanent`: retries are useless."""

    def __init__(self, reason: str, *, is_permanent: bool = False) -> None:
        super().__init__(reason)
        self.is_permanent = is_permanent
