"""Sends notices with apprise.

Each channel names its plugin, so apprise does not load its hundreds of plugins, some of which start programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import apprise
from apprise.attachment.memory import AttachMemory
from apprise.plugins.base import NotifyBase
from django.conf import settings

from leaderboard.notifications.delivery_errors import DeliveryError
from leaderboard.notifications.message import Attachment

GONE = re.compile(r"error=(401|403|404|410)\b")
"""In apprise's log: the address is invalid for good."""


def send_notice(
    plugin: type[NotifyBase], address: str, title: str, body: str, files: Iterable[Attachment] = ()
) -> None:
    """Send with a plugin to an apprise URL. The URL appears in no log."""
    parsed = plugin.parse_url(address)
    if not parsed:
        raise DeliveryError("The address is not one that can be sent to.", is_permanent=True)
    sender = apprise.Apprise(plugin(**{**parsed, "asset": build_asset()}), asset=build_asset())
    attached = [
        AttachMemory(file.contents, name=file.name, mimetype=file.content_type)  # type: ignore[no-untyped-call]
        for file in files
    ]
    result = sender.notify(body=body, title=title, body_format="text", attach=attached or None)
    if result:
        return
    if any(GONE.search(str(entry.message)) for entry in result.logs()):
        raise DeliveryError("The address is no longer valid.", is_permanent=True)
    raise DeliveryError("The service did not accept the message.")


def build_asset() -> apprise.AppriseAsset:
    """Return apprise's settings, without its own name, images and plugin files."""
    return apprise.AppriseAsset(
        app_id=settings.SITE_NAME,
        app_desc=settings.SITE_NAME,
        app_url=settings.SITE_URL,
        image_url_mask="",
        image_url_logo="",
        plugin_paths=[],
        secure_logging=True,
    )
