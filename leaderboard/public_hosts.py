"""Addresses of hosts that users name, if they are on the public internet: no request may reach an internal host."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

NAT64_NETWORKS: Final = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))


class HostError(ValueError):
    """The host is unknown or internal; the message is for the user."""


class UnknownHostError(HostError):
    """The name has no address now; a retry may succeed."""


def resolve_public_host(host: str, port: int) -> str:
    """Return an IP address of the host. Raise HostError if it has none, or one that is not on the public internet.

    The caller connects to this address. If it resolved the name again, the reply could be another (DNS rebinding).
    """
    addresses = resolve_host(host, port)
    if not all(is_public(address) for address in addresses):
        raise HostError(f"The host {host} is not on the public internet.")
    return addresses[0]


def build_pinned_request(address: str, ip: str) -> dict[str, Any]:
    """Return httpx's arguments for a request to this IP address of the host that the web address names."""
    parts = urlsplit(address)
    host = f"[{ip}]" if ":" in ip else ip
    return {
        "url": urlunsplit(parts._replace(netloc=f"{host}:{parts.port}" if parts.port else host)),
        "headers": {"Host": parts.netloc},
        "extensions": {"sni_hostname": parts.hostname},
    }


def resolve_host(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host. Raise UnknownHostError if there are none."""
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        raise UnknownHostError(f"The host {host} is not known.") from None


def is_public(address: str) -> bool:
    """Return whether an IP address, and an IPv4 address inside it, is on the public internet."""
    found = ipaddress.ip_address(address)
    contained = find_contained_address(found) if isinstance(found, ipaddress.IPv6Address) else None
    return found.is_global and (contained is None or contained.is_global)


def find_contained_address(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address to which a mapped, 6to4, Teredo or NAT64 address leads."""
    if any(address in network for network in NAT64_NETWORKS):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
