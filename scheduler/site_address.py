"""Facts about the site's own address."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


def build_container_options() -> list[str]:
    """Return the options of `docker run` for shared memory, and with which a container reaches a local site.

    Processes of one job exchange tensors through shared memory, of which docker gives 64 MB. A local site is reached
    through the host's network.
    """
    network = ["--network", "host"] if urlsplit(settings.SITE_URL).hostname in LOOPBACK_HOSTS else []
    return ["--shm-size", "2g", *network]
