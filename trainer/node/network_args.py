"""Command-line arguments: how other swarm machines reach this one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.errors import UserError

ANYWHERE = "0.0.0.0:0"


@dataclass(frozen=True)
class NetworkArgs:
    listen: str = ANYWHERE  # host:port; port 0 takes any that is free
    announce: tuple[str, ...] = ()  # addresses published instead, such as `/ip4/203.0.113.5/tcp/7000`
    behind_nat: bool = False  # No machine can connect to it. It connects to others itself, and through the coordinator.

    @property
    def flags(self) -> list[str]:
        return ["--listen", self.listen, *(word for address in self.announce for word in ("--announce", address))]


DEFAULT_NETWORK_ARGS = NetworkArgs()


class NetworkArgsError(UserError):
    """An address is malformed."""


def add_network_args(add: Callable[..., Any]) -> None:
    add("--swarm-listen", default=ANYWHERE, metavar="HOST:PORT", help="address to listen on for peers (%(default)s)")
    add("--swarm-announce", action="append", default=[], metavar="ADDRESS", help="/ip4/.../tcp/...: public address")
    add("--behind-nat", action="store_true", help="other machines cannot connect to this one")


def parse_network_args(options: argparse.Namespace) -> NetworkArgs:
    """Return the parsed arguments; raise `NetworkArgsError` for a malformed address."""
    host, _, port = options.swarm_listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise NetworkArgsError(f"--swarm-listen {options.swarm_listen} is not HOST:PORT, such as 0.0.0.0:7000")
    malformed = [address for address in options.swarm_announce if not address.startswith("/")]
    if malformed:
        raise NetworkArgsError(f"--swarm-announce {malformed[0]} is not an address such as /ip4/203.0.113.5/tcp/7000")
    return NetworkArgs(options.swarm_listen, tuple(options.swarm_announce), options.behind_nat)
