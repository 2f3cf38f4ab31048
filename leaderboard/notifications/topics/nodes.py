"""A node is down: told to its owner, and to maintainers."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import User
from django.urls import reverse

from leaderboard import permissions
from leaderboard.notifications.message import Message
from scheduler.models import Event, Node

LABEL = "A node down"
HINT = "A machine that you lend has not been heard of. Maintainers hear of every machine."


def can_choose(user: User) -> bool:
    return True


def is_relevant(user: User, about: str) -> bool:
    node = find_node(about)
    return node is not None and (node.owner_id == user.pk or permissions.is_maintainer(user))


def compose(about: str) -> Message | None:
    """`about`: the Event that said so. Nothing to say once the node is back."""
    node = find_node(about)
    if node is None or node.state != Node.State.OFFLINE:
        return None
    said = "It has not been heard of for a while; what it was doing goes on elsewhere, from the last checkpoint."
    return Message(
        title=f"{node.name} is offline",
        lines=(said, "Its job is safe. If the machine is meant to be lent now, see that it is on and the agent runs."),
        url=settings.SITE_URL + reverse("nodes"),
        facts={"node": node.name, "last_seen": node.last_seen.isoformat() if node.last_seen else None},
    )


def find_node(event: str) -> Node | None:
    found = Event.objects.filter(pk=int(event), target_kind="node").first()
    return Node.objects.filter(pk=found.target_id).first() if found else None
