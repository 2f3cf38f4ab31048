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

from leaderboard.notifications.delivery_errors import DeliveryError
from leaderboard.notifications.message import Attachment

GONE = re.compile(r"error=(401|403|404|410)\b")
"""As apprise reports it: the address is no good, and will not be."""


def send_notice(
    plugin: type[NotifyBase], address: str, title: str, body: str, files: Iterable[Attachment] = ()
) -> None:
    """Send by a service's plugin to its address, as apprise writes it. Nothing of the address gets into any log."""
    parsed = plugin.parse_url(address)
    if not parsed:
        raise DeliveryError("The address is not one that can be sent to.", for_good=True)
    sender = apprise.Apprise(plugin(**{**parsed, "asset": build_asset()}), asset=build_asset())
    attached = [build_attachment(file) for file in files]
    result = sender.notify(body=body, title=title, body_format="text", attach=attached or None)
    if result:
        return
    said = " ".join(str(entry.message) for entry in result.logs())
    gone = bool(GONE.search(said))
    raise DeliveryError("The address is not valid any more." if gone else "The service did not take it.", for_good=gone)


def build_attachment(file: Attachment) -> AttachMemory:
    return AttachMemory(file.contents, name=file.name, mimetype=file.content_type)  # type: ignore[no-untyped-call]


def build_asset() -> apprise.AppriseAsset:
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
