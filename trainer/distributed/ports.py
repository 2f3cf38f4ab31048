"""Ports on this machine."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress


def find_free_port() -> int:
    """Return a port that no process listens on. Outgoing connections use ports from 32768 on, so it stays free."""
    while True:
        port = 15_000 + secrets.randbelow(17_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
