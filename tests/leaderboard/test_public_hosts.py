"""Which IP addresses a request of the site may reach, when a user names the host."""

from __future__ import annotations

import pytest

from leaderboard.public_hosts import HostError, UnknownHostError, is_public, resolve_host, resolve_public_host


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::"]
)
def test_public_address_is_accepted(address: str) -> None:
    assert is_public(address)


PLAIN = "127.0.0.1 10.0.0.1 169.254.169.254 0.0.0.0 ::1 fe80::1 fd00::1 ::ffff:10.0.0.1"
TRANSLATED = "64:ff9b::a00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::7f00:1 2002:a00:1::"  # by NAT64 and 6to4


@pytest.mark.parametrize("address", f"{PLAIN} {TRANSLATED}".split())
def test_internal_address_is_refused(address: str) -> None:
    assert not is_public(address)


def test_host_with_internal_address_is_refused() -> None:
    with pytest.raises(HostError, match="not on the public internet"):
        resolve_public_host("localhost", 443)


@pytest.mark.parametrize("host", ["host.invalid", "a" * 64 + ".example", ".."])
def test_unknown_host_is_refused(host: str) -> None:
    with pytest.raises(UnknownHostError, match="is not known"):
        resolve_host(host, 443)
