"""A node as matching sees it: what it can do, what its owner lends it for, and for how much longer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import BigIntegerField

from scheduler import windows
from scheduler.matching import NodeSlot
from scheduler.models import Node, Window
from scheduler.prepared import Later, Prepared
from trainer import protocol

HOUR = 3600.0


def build_node_slot(
    node: Node, now: datetime, *, lane: int = 0, lanes: int | None = None, lent: Collection[Window] | None = None
) -> NodeSlot:
    """Return one lane of the node. The first sandbox driver that it names is the one in use.

    `lanes`: as many as it runs; None takes the owner's wish. `lent`: its windows, for whoever has them at hand;
    otherwise they cost a query where it has any.
    """
    facts = node.hardware
    lanes = lanes or node.lanes or 1
    gpus, least = get_slot_gpus(facts, lane, lanes)
    free = int(facts.get("disk_free_bytes") or 0)
    return NodeSlot(
        labels=frozenset(node.labels),
        trusted=node.trusted,
        sandboxed=(facts.get("sandboxes") or ["none"])[0] != "none",
        disk_free_bytes=free if node.disk_bytes is None else min(free, node.disk_bytes),
        gpus=gpus,
        gpu_memory_bytes=least,
        memory_bytes=int(facts.get("memory_bytes") or 0) // lanes,
        kinds=None if facts.get("kinds") is None else frozenset(facts["kinds"]),
        packets=node.packets,
        models=get_models(facts),
        campaign=str((facts.get("rephraser") or {}).get("campaign") or ""),
        swarm_run=facts.get("swarm_run"),
        serves=node.serves,
        serves_track=node.serves_track,
        seconds_left=get_seconds_left(node, now, lent),
        max_seconds=None if node.max_hours is None else node.max_hours * HOUR,
        node=node.pk,
        owner=node.owner_id,
    )


def get_slot_gpus(facts: dict[str, object], lane: int, lanes: int) -> tuple[int, int]:
    """Return how many GPUs the lane has, and the memory of the smallest; 0 where an older agent does not tell it."""
    details = facts.get("gpu_details")
    if isinstance(details, list) and details:
        memory = [int(gpu.get("memory_bytes") or 0) for gpu in protocol.split_evenly(details, lane, lanes)]
        return len(memory), min(memory, default=0)
    names = facts.get("gpus")
    return len(protocol.split_evenly(names, lane, lanes)) if isinstance(names, list) else 0, 0


def get_models(facts: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the language models that the node can rephrase with; None for any that a campaign asks for."""
    known = (facts.get("rephraser") or {}).get("models")
    return None if known is None else frozenset(known)


def load_windows(node: Node) -> list[Window]:
    """Return the node's windows, if its owner lends it in windows: then one query."""
    return WINDOWS.rows(node=node.pk) if node.available == Node.Available.WINDOWS else []


WINDOWS = Prepared(lambda: Window.objects.filter(node=Later("node", BigIntegerField())))


def get_seconds_left(node: Node, now: datetime, lent: Collection[Window] | None = None) -> float | None:
    """Return for how many seconds its owner still lends the node: 0 where he does not, None where no end is near."""
    lent = load_windows(node) if lent is None else lent
    return windows.get_seconds_left(lent, node.available, node.available_until, node.timezone, now)


def find_next_opening(node: Node, now: datetime, lent: Collection[Window] | None = None) -> datetime | None:
    """Return when a node that is not lent now will be lent again, if that is foreseen."""
    lent = load_windows(node) if lent is None else lent
    return windows.find_next_opening(lent, node.available, node.timezone, now)


def get_time_zone(node: Node) -> ZoneInfo:
    """Return its owner's time zone; UTC where nobody knows it."""
    return windows.parse_time_zone(node.timezone) or ZoneInfo("UTC")
