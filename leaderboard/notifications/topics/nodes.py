"""A node is offline: for its owner and for maintainers."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import User
from django.urls import reverse

from leaderboard import permissions
from leaderboard.notifications.message import Message
from scheduler.models import Event, Node

LABEL = "Node offline"
HINT = "A node that you lend is offline. Maintainers get notices of all nodes."


def can_choose(user: User) -> bool:
    return True


def is_relevant(user: User, about: str) -> bool:
    node = find_node(about)
    return node is not None and (node.owner_id == user.pk or permissions.is_maintainer(user))


def compose(about: str) -> Message | None:
    """`about`: the Event's id. Obsolete once the node is online again."""
    node = find_node(about)
    if node is None or node.state != Node.State.OFFLINE:
        return None
    line = "It has not sent a request for two minutes. Its job continues on another node, from the last checkpoint."
    return Message(
        title=f"{node.name} is offline",
        lines=(line, "If it should be lent now, check that the machine is on and the agent is running."),
        url=settings.SITE_URL + reverse("nodes"),
        facts={"node": node.name, "last_seen": node.last_seen.isoformat() if node.last_seen else None},
    )


def find_node(event: str) -> Node | None:
    found = Event.objects.filter(pk=int(event), target_kind="node").first()
    return Node.objects.filter(pk=found.target_id).first() if found else None
