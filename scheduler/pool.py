"""Nodes: what they are to matching, when they were heard of, and what their owners make them do."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import DateTimeField, F, Q
from django.utils import timezone

from scheduler.health import record_health
from scheduler.models import Event, Node
from scheduler.node_api import last_seen
from scheduler.prepared import Later, Prepared
from trainer import protocol

OFFLINE_AFTER = timedelta(minutes=2)
"""A poll is held open for a minute at most, so a node that lives is heard of more often than this."""
OFFLINE_REASON = "It has not been heard of for a while."
"""In the Event of a node that is offline."""
LAST_SEEN_INTERVAL = timedelta(seconds=5)
"""A row is not written for every call of a busy node."""
FIRST_REST = timedelta(seconds=5)
LONGEST_REST = timedelta(minutes=10)
SITE = "site"


class NodeError(ValueError):
    """The node cannot do that; the message is a sentence."""


def get_actor(node: Node) -> str:
    return f"node:{node.name}"


# --- heard of --------------------------------------------------------------------------------------------------------


def record_poll(
    node: Node,
    hardware: protocol.Hardware,
    health: protocol.Health | None = None,
    lanes_wished: int | None = None,
    notes: last_seen.Notes | None = None,
) -> None:
    """The node asks for work: note what it is and how it is now, and that it is here.

    In its row that stands at once; with `notes` in a moment, where it is nothing that others look for."""
    now = timezone.now()
    back = node.state in (Node.State.NEW, Node.State.OFFLINE)
    stale = node.last_seen is None or now - node.last_seen > LAST_SEEN_INTERVAL
    found = hardware.model_dump(mode="json")
    labels, lanes = merge_labels(node, hardware), lanes_wished or node.lanes
    news = {"hardware": found} if found != node.hardware else {}
    if stale:
        news |= record_health(node, health)
    if (labels, lanes) != (node.labels, node.lanes):
        Node.objects.filter(pk=node.pk).update(last_seen=now, labels=labels, lanes=lanes, **news)
    elif news or stale:
        word = last_seen.Word(now, {"hardware": found, "health": node.health} if news else None)
        notes.take(node, word) if notes is not None and not back else last_seen.write({node.pk: word})
    node.hardware, node.labels, node.lanes, node.last_seen = found, labels, lanes, now
    if back:
        change(node, Node.State.ONLINE, since=[Node.State.NEW, Node.State.OFFLINE], by=get_actor(node), why="")


def merge_labels(node: Node, hardware: protocol.Hardware) -> list[str]:
    """Return the node's labels where what it finds out about itself has changed: its owner's own stay."""
    before = set(node.hardware.get("found_labels") or ()) - set(node.wished_labels)
    return sorted((set(node.labels) - before) | set(hardware.found_labels) | set(node.wished_labels))


def record_heartbeat(node: Node, now: datetime, health: protocol.Health | None = None) -> None:
    """The node is alive, whatever it does."""
    if node.last_seen is None or now - node.last_seen > LAST_SEEN_INTERVAL:
        Node.objects.filter(pk=node.pk).update(last_seen=now, **record_health(node, health))
    if node.state == Node.State.OFFLINE:
        change(node, Node.State.ONLINE, since=[Node.State.OFFLINE], by=get_actor(node), why="")


def mark_silent_nodes_offline(now: datetime) -> int:
    """Say so of nodes that have not been heard of for a while; return how many. One that drained stays drained."""
    silent = SILENT.rows(before=now - OFFLINE_AFTER)
    return sum(
        change(node, Node.State.OFFLINE, since=[Node.State.ONLINE], by=SITE, why=OFFLINE_REASON) for node in silent
    )


SILENT = Prepared(lambda: Node.objects.filter(state=Node.State.ONLINE, last_seen__lt=Later("before", DateTimeField())))


# --- what its owner asks ---------------------------------------------------------------------------------------------


def drain_node(node: Node, by: str, why: str = "") -> bool:
    """Let the node finish its job and take no more."""
    return set_node_state(node, Node.State.DRAINING, by, why or "It finishes what it does and takes no more.")


def pause_node(node: Node, by: str, why: str = "") -> bool:
    """Let the node hand its job back at the next checkpoint, and wait."""
    return set_node_state(node, Node.State.PAUSED, by, why or "It was paused.")


def ban_node(node: Node, by: str, why: str = "") -> bool:
    """Refuse the node from now on; its job goes back when its lease has run out."""
    return set_node_state(node, Node.State.BANNED, by, why or "It was banned by a maintainer.")


def resume_node(node: Node, by: str, why: str = "", *, lifts_ban: bool = True) -> bool:
    """Let a drained or paused node work again, and forget what went badly. Its owner may not lift a ban."""
    stopped = [Node.State.DRAINING, Node.State.PAUSED, *([Node.State.BANNED] if lifts_ban else [])]
    Node.objects.filter(pk=node.pk, state__in=stopped).update(failures=0, rest_until=None)
    return change(
        node,
        Node.State.OFFLINE,  # online with its next question
        since=stopped,
        by=by,
        why=why,
        sentence=f"{node.name} may work again.",
    )


def trust_node(node: Node, by: str, why: str = "") -> bool:
    """Let the node score."""
    return set_trust(node, True, by, f"{node.name} is trusted to score{': ' + why if why else '.'}")


def distrust_node(node: Node, by: str, why: str = "") -> bool:
    """Let the node score no more. What it is scoring now will not count."""
    return set_trust(node, False, by, f"{node.name} is no longer trusted to score{': ' + why if why else '.'}")


@transaction.atomic
def set_trust(node: Node, trusted: bool, by: str, sentence: str) -> bool:
    changed = Node.objects.filter(pk=node.pk, trusted=not trusted).update(trusted=trusted)
    node.refresh_from_db()
    if changed:
        Event.record(by, node, sentence)
    return changed == 1


def set_node_state(node: Node, to: Node.State, by: str, why: str) -> bool:
    """From any other state; a ban stays a ban whatever else is asked."""
    since: list[Node.State] = [state for state in Node.State if state not in (to, Node.State.BANNED)]
    return change(node, to, since=since, by=by, why=why)


@transaction.atomic
def change(node: Node, to: Node.State, *, since: list[Node.State], by: str, why: str, sentence: str = "") -> bool:
    """Change the state if it is one of `since`, and say so; return whether it changed."""
    changed = Node.objects.filter(pk=node.pk, state__in=since).update(state=to, reason=why[:500])
    node.refresh_from_db()
    if changed:
        Event.record(by, node, sentence or f"{node.name} is {to.value}{': ' + why if why else '.'}")
    return changed == 1


# --- how it does -----------------------------------------------------------------------------------------------------


def record_job_success(node: Node) -> None:
    """A job came to its end here, be it the model's own failure: the machine is sound."""
    if node.failures or node.rest_until:
        Node.objects.filter(pk=node.pk).update(failures=0, rest_until=None)


def record_node_failure(node: Node) -> None:
    """A job failed here for reasons of the machine. From the second in a row on it rests, twice as long each time."""
    Node.objects.filter(pk=node.pk).update(failures=F("failures") + 1)
    node.refresh_from_db()
    if node.failures < 2:
        return
    rest = min(FIRST_REST * 2 ** min(node.failures - 2, 10), LONGEST_REST)
    until = timezone.now() + rest
    rests = Node.objects.filter(Q(rest_until=None) | Q(rest_until__lt=until), pk=node.pk).update(rest_until=until)
    if rests:
        Event.record(
            SITE,
            node,
            f"{node.failures} jobs in a row failed on {node.name} for reasons of the machine: it rests a while.",
        )
