"""How a swarm's other machines reach this one: the owner's word, as flags."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ANYWHERE = "0.0.0.0:0"


@dataclass(frozen=True)
class NetworkArgs:
    listen: str = ANYWHERE
    """host:port; port 0 takes any that is free."""
    announce: tuple[str, ...] = ()
    """Addresses that others should use instead, such as `/ip4/203.0.113.5/tcp/7000`."""
    behind_nat: bool = False
    """Nobody can dial it: it is reached over connections of its own, and through the coordinator."""

    @property
    def flags(self) -> list[str]:
        return ["--listen", self.listen, *(word for address in self.announce for word in ("--announce", address))]


DEFAULT_NETWORK_ARGS = NetworkArgs()
"""Of whoever says nothing about it."""


class NetworkArgsError(ValueError):
    """No address that could be reached."""


def add_network_args(add: Callable[..., Any]) -> None:
    add("--swarm-listen", default=ANYWHERE, metavar="HOST:PORT", help="where others of a swarm reach it (%(default)s)")
    add("--swarm-announce", action="append", default=[], metavar="ADDRESS", help="/ip4/.../tcp/...: dialled instead")
    add("--behind-nat", action="store_true", help="nobody can dial this machine")


def parse_network_args(options: argparse.Namespace) -> NetworkArgs:
    """Return what the flags say; raise ReachError, with one line, if that is no address."""
    host, _, port = options.swarm_listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise NetworkArgsError(f"--swarm-listen {options.swarm_listen} is not HOST:PORT, such as 0.0.0.0:7000")
    wrong = [address for address in options.swarm_announce if not address.startswith("/")]
    if wrong:
        raise NetworkArgsError(f"--swarm-announce {wrong[0]} is not an address such as /ip4/203.0.113.5/tcp/7000")
    return NetworkArgs(options.swarm_listen, tuple(options.swarm_announce), options.behind_nat)


def is_swarm_installed() -> bool:
    """Whether this machine can take part at all: the extra `swarm` is installed."""
    return importlib.util.find_spec("hivemind") is not None
