"""Facts about the site's own address."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


def build_network_options() -> list[str]:
    """Return the options of `docker run` with which a container reaches a local site: the host's network."""
    return ["--network", "host"] if urlsplit(settings.SITE_URL).hostname in LOOPBACK_HOSTS else []
