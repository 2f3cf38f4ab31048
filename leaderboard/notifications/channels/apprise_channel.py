"""What all channels of apprise share. It knows the services; we know our words and what to do when one says no.

Each channel names its plugin, so that apprise does not load all of its hundreds, some of which start programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import apprise
from apprise.attachment.memory import AttachMemory
from apprise.plugins.base import NotifyBase
from django.conf import settings

from leaderboard.notifications.delivery_errors import Undelivered
from leaderboard.notifications.message import File

GONE = re.compile(r"error=(401|403|404|410)\b")
"""As apprise reports it: the address is no good, and will not be."""


def notify(plugin: type[NotifyBase], address: str, title: str, body: str, files: Iterable[File] = ()) -> None:
    """Send by a service's plugin to its address, as apprise writes it. Nothing of the address gets into any log."""
    parsed = plugin.parse_url(address)
    if not parsed:
        raise Undelivered("The address is not one that can be sent to.", for_good=True)
    sender = apprise.Apprise(plugin(**{**parsed, "asset": asset()}), asset=asset())
    attached = [attachment(file) for file in files]
    result = sender.notify(body=body, title=title, body_format="text", attach=attached or None)
    if result:
        return
    said = " ".join(str(entry.message) for entry in result.logs())
    gone = bool(GONE.search(said))
    raise Undelivered("The address is not valid any more." if gone else "The service did not take it.", for_good=gone)


def attachment(file: File) -> AttachMemory:
    return AttachMemory(file.contents, name=file.name, mimetype=file.content_type)  # type: ignore[no-untyped-call]


def asset() -> apprise.AppriseAsset:
    """Return apprise without its own name, pictures and files."""
    return apprise.AppriseAsset(
        app_id=settings.SITE_NAME,
        app_desc=settings.SITE_NAME,
        app_url=settings.SITE_URL,
        image_url_mask="",
        image_url_logo="",
        plugin_paths=[],
        secure_logging=True,
    )
