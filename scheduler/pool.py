"""Nodes: their reports, their states and what their owners request."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from scheduler import node_health
from scheduler.models import SITE_ACTOR, Event, Node
from scheduler.transitions import transition
from trainer import protocol

OFFLINE_AFTER = timedelta(minutes=2)
"""A node polls or sends a heartbeat every few seconds, and once in `LAST_SEEN_INTERVAL` that is recorded."""
OFFLINE_EVENT = "offline"
"""Message of the event that a node is offline."""
LAST_SEEN_INTERVAL = timedelta(seconds=30)
"""Minimum time between two updates of a node's `last_seen`."""
MEASURED_EACH_TIME = {"disk_free_bytes", "network_bytes_per_second"}
"""Facts of a node's hardware that differ from poll to poll."""
HEALTH_WARNINGS = {
    "throttled": "A GPU of {name} is slowed down by heat or by its power supply.",
    "idle_gpu": "A job runs on {name}, and its GPU has had nothing to do for minutes.",
    "trouble": "{name} takes no job: {trouble}",
}


def get_actor(node: Node) -> str:
    return f"node:{node.name}"


# --- reports of nodes -------------------------------------------------------------------------------------------------


def record_poll(
    node: Node,
    hardware: protocol.Hardware,
    health: protocol.Health | None = None,
    slots_requested: int | None = None,
) -> None:
    """Record the hardware and health of a polling node, and that it is there.

    The row is written when hardware, labels or slots change, and at most once in `LAST_SEEN_INTERVAL` otherwise.
    """
    now, facts = timezone.now(), hardware.model_dump(mode="json")
    is_stale = node.last_seen is None or now - node.last_seen > LAST_SEEN_INTERVAL
    slots = slots_requested or node.slots
    # Labels that the agent no longer detects go, except the owner's.
    undetected = set(node.hardware.get("found_labels") or ()) - set(node.owner_labels)
    labels = sorted((set(node.labels) - undetected) | set(hardware.found_labels) | set(node.owner_labels))
    has_changed = (labels, slots) != (node.labels, node.slots) or any(
        node.hardware.get(name) != value for name, value in facts.items() if name not in MEASURED_EACH_TIME
    )
    node.hardware, node.labels, node.slots, node.last_seen = facts, labels, slots, now
    if is_stale or has_changed:
        record_health(node, health)
        changed = {name: getattr(node, name) for name in ("last_seen", "hardware", "health", "labels", "slots")}
        Node.objects.filter(pk=node.pk).update(**changed)
    node_health.update_state(node, get_actor(node))


def record_heartbeat(node: Node, now: datetime, health: protocol.Health | None = None) -> None:
    """Record that the node is alive."""
    if node.last_seen is None or now - node.last_seen > LAST_SEEN_INTERVAL:
        record_health(node, health)
        Node.objects.filter(pk=node.pk).update(last_seen=now, health=node.health)
    if node.state == Node.State.OFFLINE:
        node_health.update_state(node, get_actor(node))


def record_health(node: Node, health: protocol.Health | None) -> bool:
    """Set the node's health and record Events of new warnings; return whether it changed. The caller saves the node."""
    report = node.health if health is None else health.model_dump(mode="json")
    if report == node.health:
        return False
    for name, message in HEALTH_WARNINGS.items():
        if report[name] and report[name] != node.health.get(name):
            Event.record(get_actor(node), node, message.format(name=node.name, trouble=report["trouble"]))
    node.health = report
    return True


def mark_silent_nodes_offline(now: datetime) -> None:
    """Mark working nodes that have been silent for `OFFLINE_AFTER` as offline. A failing one stays failing."""
    present = [Node.State.ONLINE, Node.State.TESTING]
    for node in Node.objects.filter(state__in=present, last_seen__lt=now - OFFLINE_AFTER):
        set_node_state(
            node,
            Node.State.OFFLINE,
            SITE_ACTOR,
            "It has sent no request for two minutes.",
            since=present,
            event_kind=OFFLINE_EVENT,
        )


# --- requests of owners -----------------------------------------------------------------------------------------------


def drain_node(node: Node, by: str, why: str = "") -> bool:
    """Let the node finish its job and get no more."""
    return set_node_state(node, Node.State.DRAINING, by, why or "It finishes its job and gets no more.")


def pause_node(node: Node, by: str, why: str = "") -> bool:
    """Let the node hand its job back at the next checkpoint, and wait."""
    return set_node_state(node, Node.State.PAUSED, by, why or "It was paused.")


def ban_node(node: Node, by: str, why: str = "") -> bool:
    """Reject the node's calls from now on. Its job is requeued when its lease has expired."""
    return set_node_state(node, Node.State.BANNED, by, why or "It was banned by a maintainer.")


def resume_node(node: Node, by: str, why: str = "", *, lifts_ban: bool = True) -> bool:
    """Let a drained or paused node work again and reset its failures. Its owner may not lift a ban.

    A failed self-test is repeated first."""
    stopped = [Node.State.DRAINING, Node.State.PAUSED, *([Node.State.BANNED] if lifts_ban else [])]
    passed = {slot: test for slot, test in node.self_tests.items() if test["passed"]}
    fields = {"failures": 0, "rest_until": None, "self_tests": passed, "fault": ""}
    message = f"{node.name} may work again."  # online with its next poll
    return set_node_state(node, Node.State.OFFLINE, by, why, since=stopped, message=message, **fields)


def trust_node(node: Node, by: str, why: str = "") -> bool:
    """Let the node score."""
    return set_trust(node, True, by, f"{node.name} is trusted to score{': ' + why if why else '.'}")


def distrust_node(node: Node, by: str, why: str = "") -> bool:
    """Let the node score no more. What it is scoring now will not count."""
    return set_trust(node, False, by, f"{node.name} is no longer trusted to score{': ' + why if why else '.'}")


@transaction.atomic
def set_trust(node: Node, trusted: bool, by: str, message: str) -> bool:
    changed = Node.objects.filter(pk=node.pk, trusted=not trusted).update(trusted=trusted)
    node.refresh_from_db()
    if changed:
        Event.record(by, node, message)
    return changed == 1


def set_node_state(
    node: Node,
    to: Node.State,
    by: str,
    why: str,
    *,
    since: Collection[Node.State] | None = None,
    message: str = "",
    **fields: Any,
) -> bool:
    """Change the node's state; return whether it changed. Without `since` from any other state except a ban."""
    if since is None:
        since = [state for state in Node.State if state not in (to, Node.State.BANNED)]
    message = message or f"{node.name} is {to.value}{': ' + why if why else '.'}"
    return transition(node, to, since=since, actor=by, message=message, reason=why[:500], **fields)
