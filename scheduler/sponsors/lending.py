"""Lending: create a node with its owner's settings, and the command that joins it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime, time
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from scheduler import node_tokens
from scheduler.models import Event, JoinToken, Node, Sponsor, Window

MAX_UNJOINED_NODES = 20
"""Nodes of one owner that have never joined."""


class TooManyNodesError(ValueError):
    """Too many of your nodes have not joined yet. Let them join, or delete some, before you add another."""

    def __init__(self) -> None:
        super().__init__(self.__class__.__doc__)


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """An owner's settings of a node: the columns of `Node` of the same names, and its windows."""

    serves: str
    serves_track: str
    packets: str
    available: str
    available_until: datetime | None
    timezone: str
    max_hours: float | None
    disk_bytes: int | None
    shown: bool
    slots: int
    owner_labels: tuple[str, ...]
    windows: tuple[tuple[int, time, time], ...]
    """Weekday (0 is Monday), start, end."""

    def get_columns(self) -> dict[str, object]:
        values = {name: value for name, value in vars(self).items() if name != "windows"}
        return values | {"owner_labels": list(self.owner_labels)}


# --- lending -------------------------------------------------------------------------------------------------------


@transaction.atomic
def lend_node(owner: User, name: str, gpus: list[str], node_settings: NodeSettings) -> tuple[Node, str]:
    """Return a new node that has not joined yet, and its join token. Raises TooManyNodesError."""
    if Node.objects.filter(owner=owner.pk, token_hash=None, last_seen=None).count() >= MAX_UNJOINED_NODES:
        raise TooManyNodesError
    hardware = {"gpus": gpus} if gpus else {}  # until the node reports its own
    node = Node(name=name, owner=owner, hardware=hardware, labels=list(node_settings.owner_labels))
    save_settings(node, node_settings)
    Event.record(owner.get_username(), node, f"{owner.get_username()} lends {name}. It has not joined yet.")
    return node, node_tokens.create_join_token(renews=node, owner=owner)


@transaction.atomic
def change_settings(node: Node, node_settings: NodeSettings, by: str) -> None:
    """Save new settings. They apply from the next job, an earlier end time immediately."""
    found = set(node.labels) - set(node.owner_labels)
    node.labels = sorted({*found, *node_settings.owner_labels})
    save_settings(node, node_settings)
    Event.record(by, node, f"{by} changed the settings of {node.name}.")


def save_settings(node: Node, node_settings: NodeSettings) -> None:
    columns = node_settings.get_columns()
    for column, value in columns.items():
        setattr(node, column, value)
    node.save(update_fields=[*columns, "labels"] if node.pk else None)
    node.windows.all().delete()
    Window.objects.bulk_create(
        Window(node=node, weekday=weekday, start=start, end=end) for weekday, start, end in node_settings.windows
    )


def save_sponsor(user: User, name: str, link: str) -> Sponsor:
    """Save a sponsor's public name."""
    sponsor, _ = Sponsor.objects.update_or_create(user=user, defaults={"name": name, "link": link})
    return sponsor


# --- joining -------------------------------------------------------------------------------------------------------


@transaction.atomic
def create_install_token(node: Node, by: User) -> str:
    """Return a new join token of the node and expire its earlier ones.

    The node's own token stays valid until the new join token is used, so its job continues.
    """
    node_tokens.expire_join_tokens(node)
    Event.record(by.get_username(), node, f"{by.get_username()} created a new install command.")
    return node_tokens.create_join_token(renews=node, owner=by)


def find_usable_join_token(node: Node, token: str) -> JoinToken | None:
    """Return the newest usable join token of the node; with `token` only if it is that one."""
    usable = JoinToken.objects.filter(renews=node, used_at=None, expires_at__gt=timezone.now()).order_by("-pk")
    return (usable.filter(token_hash=node_tokens.hash_token(token)) if token else usable).first()


@transaction.atomic
def delete_unjoined_node(node: Node) -> bool:
    """Delete the node if it never joined; return whether it was deleted."""
    deleted, _ = Node.objects.filter(pk=node.pk, token_hash=None, last_seen=None, leases=None).delete()
    return bool(deleted)


STOP_SECONDS = 150
"""Timeout of `docker stop`. The agent hands its job back at the next checkpoint, which takes up to two minutes."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Hosts of a local site. A container reaches it through the host's network only."""


def build_agent_arguments(node: Node, token: str) -> list[str]:
    """Return the agent's arguments."""
    labels = [argument for label in node.owner_labels for argument in ("--label", label)]
    return ["--server", settings.SITE_URL, "--name", node.name, *labels, "--token", token]


def build_docker_command(node: Node, token: str) -> str:
    """Return the command for a machine with Docker.

    The sandbox inside creates user namespaces and mounts, which Docker's profiles forbid (SECURITY.md). It needs no
    capability and no setuid program.
    """
    name = f"dailytrain-{node.name}"
    remove = f"docker rm -f {shlex.quote(name)}; " if node.last_seen else ""
    options = ["-d", "--name", name, "--restart", "on-failure:5", "--stop-timeout", str(STOP_SECONDS)]
    options += ["--gpus", "all"] if has_gpus(node) else []
    options += ["--network", "host"] if urlsplit(settings.SITE_URL).hostname in LOOPBACK else []
    options += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    for profile in ("seccomp", "apparmor", "systempaths"):
        options += ["--security-opt", f"{profile}=unconfined"]
    options += ["-v", f"{name}:/home/node/data", settings.NODE_IMAGE]
    return remove + shlex.join(["docker", "run", *options, *build_agent_arguments(node, token)])


def build_pipx_command(node: Node, token: str) -> str:
    """Return the command for a machine without Docker."""
    return shlex.join(
        ["pipx", "run", "--spec", settings.NODE_PACKAGE, "dailytrain", "node", *build_agent_arguments(node, token)]
    )


def has_gpus(node: Node) -> bool:
    return bool(node.hardware.get("gpus"))
