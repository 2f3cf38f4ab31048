"""Lending: a sponsor's wishes become a node that waits to join, with one line to paste."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime, time
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from scheduler.models import Event, JoinToken, Node, Sponsor, Window
from scheduler.node_api import auth

WAITING_NODES = 20
"""Of one owner, nodes that have been described and have never joined: more are not the work of a hand."""


class TooManyNodes(ValueError):
    """So many nodes of yours wait to join already: let them join, or forget some, before you describe another."""

    def __init__(self) -> None:
        super().__init__(self.__class__.__doc__)


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What an owner says about a node; the columns of `Node` of the same names, and its windows."""

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

    def columns(self) -> dict[str, object]:
        values = {name: value for name, value in vars(self).items() if name != "windows"}
        return values | {"owner_labels": list(self.owner_labels)}


# --- lending -------------------------------------------------------------------------------------------------------


@transaction.atomic
def lend(owner: User, name: str, gpus: list[str], wishes: Wishes) -> tuple[Node, str]:
    """Make the node, which has yet to join, and the token with which it does. Raise TooManyNodes."""
    if Node.objects.filter(owner=owner.pk, token_hash=None, last_seen=None).count() >= WAITING_NODES:
        raise TooManyNodes
    told = {"gpus": gpus} if gpus else {}  # until the node has looked for itself
    node = Node(name=name, owner=owner, hardware=told, labels=list(wishes.owner_labels))
    set_wishes(node, wishes)
    Event.record(owner.get_username(), node, f"{owner.get_username()} lends {name}; it has yet to join.")
    return node, auth.create_join_token(renews=node, owner=owner)


@transaction.atomic
def change_wishes(node: Node, wishes: Wishes, by: str) -> None:
    """Note new wishes; they hold from the node's next question on, the end of its time at once."""
    found = set(node.labels) - set(node.owner_labels)
    node.labels = sorted({*found, *wishes.owner_labels})
    set_wishes(node, wishes)
    Event.record(by, node, f"{by} changed what {node.name} is lent for.")


def set_wishes(node: Node, wishes: Wishes) -> None:
    columns = wishes.columns()
    for column, value in columns.items():
        setattr(node, column, value)
    node.save(update_fields=[*columns, "labels"] if node.pk else None)
    node.windows.all().delete()
    Window.objects.bulk_create(
        Window(node=node, weekday=weekday, start=start, end=end) for weekday, start, end in wishes.windows
    )


def introduce(user: User, name: str, link: str) -> Sponsor:
    """Keep the name under which somebody lends."""
    sponsor, _ = Sponsor.objects.update_or_create(user=user, defaults={"name": name, "link": link})
    return sponsor


# --- joining -------------------------------------------------------------------------------------------------------


@transaction.atomic
def new_line(node: Node, by: User) -> str:
    """Return a token with which the node joins, as itself; earlier ones are worth nothing from now on.

    The token that the node has is good until the new one is used: nothing that runs is lost.
    """
    auth.expire_join_tokens(node)
    Event.record(by.get_username(), node, f"{by.get_username()} asked for a new line to join with.")
    return auth.create_join_token(renews=node, owner=by)


def waits_with(node: Node, token: str) -> JoinToken | None:
    """Return the join token that the node may use now; with `token` None is returned unless it is that one."""
    usable = JoinToken.objects.filter(renews=node, used_at=None, expires_at__gt=timezone.now()).order_by("-pk")
    return (usable.filter(token_hash=auth.hash_token(token)) if token else usable).first()


@transaction.atomic
def forget(node: Node) -> bool:
    """Remove a node that never joined; return whether it was one."""
    deleted, _ = Node.objects.filter(pk=node.pk, token_hash=None, last_seen=None, leases=None).delete()
    return bool(deleted)


STOP_SECONDS = 150
"""`docker stop` waits so long: the agent hands its job back at the next checkpoint, for which a job has two minutes."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""A site for trying things out: inside a container with a network of its own these are the container itself."""


def words(node: Node, token: str) -> list[str]:
    """Return what the agent is told, however it is started."""
    labels = [word for label in node.owner_labels for word in ("--label", label)]
    return ["--server", settings.SITE_URL, "--name", node.name, *labels, "--token", token]


def docker_line(node: Node, token: str) -> str:
    """Return the command for a machine with Docker.

    The sandbox inside creates user namespaces and mounts, which Docker's profiles forbid (SECURITY.md). It needs no
    capability and no setuid program.
    """
    name = f"dailytrain-{node.name}"
    again = f"docker rm -f {shlex.quote(name)}; " if node.last_seen else ""
    options = ["-d", "--name", name, "--restart", "on-failure:5", "--stop-timeout", str(STOP_SECONDS)]
    options += ["--gpus", "all"] if has_gpus(node) else []
    options += ["--network", "host"] if urlsplit(settings.SITE_URL).hostname in LOOPBACK else []
    options += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    for profile in ("seccomp", "apparmor", "systempaths"):
        options += ["--security-opt", f"{profile}=unconfined"]
    options += ["-v", f"{name}:/home/node/data", settings.NODE_IMAGE]
    return again + shlex.join(["docker", "run", *options, *words(node, token)])


def pipx_line(node: Node, token: str) -> str:
    """Return the line for a machine without Docker."""
    return shlex.join(["pipx", "run", "--spec", settings.NODE_PACKAGE, "dailytrain", "node", *words(node, token)])


def has_gpus(node: Node) -> bool:
    return bool(node.hardware.get("gpus"))
