"""A notice before it is put into the form of any channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Attachment:
    name: str
    content_type: str
    url: str
    """Where it can be had by whoever gets no attachments."""
    contents: bytes


@dataclass(frozen=True)
class Message:
    """Plain text throughout: titles and reasons are strangers' words, so each channel escapes it in its own way."""

    title: str
    lines: tuple[str, ...]
    """A sentence or two each."""
    url: str
    """The page that says more."""
    files: tuple[Attachment, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs (`channels/webhook.py`)."""
