"""A node as matching sees it: its capabilities, its owner's settings and the time left."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from zoneinfo import ZoneInfo

from scheduler import node_vetting
from scheduler import windows as lending_windows
from scheduler.matching import NodeSlot
from scheduler.models import Node, Window
from trainer import protocol

HOUR = 3600.0


def build_node_slot(node: Node, now: datetime, *, slot: int = 0, slots: int | None = None) -> NodeSlot:
    """Return one slot of the node. `slots`: how many the agent runs; by default as its owner set."""
    facts = node.hardware
    slots = slots or node.slots or 1
    gpus, least = get_slot_gpus(facts, slot, slots)
    rephraser = facts.get("rephraser") or {}
    free = int(facts.get("disk_free_bytes") or 0)
    return NodeSlot(
        labels=frozenset(node.labels),
        trusted=node.trusted,
        vetted=node_vetting.is_result_accepted(node),
        # The first sandbox driver in the list is the one in use.
        sandboxed=(facts.get("sandboxes") or ["none"])[0] != "none",
        disk_free_bytes=free if node.disk_bytes is None else min(free, node.disk_bytes),
        gpus=gpus,
        gpu_memory_bytes=least,
        memory_bytes=int(facts.get("memory_bytes") or 0) // slots,
        kinds=freeze(facts.get("kinds")),
        packets=node.packets,
        models=freeze(rephraser.get("models")),
        campaign=str(rephraser.get("campaign") or ""),
        swarm_run=facts.get("swarm_run"),
        serves=node.serves,
        serves_track=node.serves_track,
        seconds_left=get_seconds_left(node, now),
        max_seconds=None if node.max_hours is None else node.max_hours * HOUR,
        node=node.pk,
        owner=node.owner_id,
    )


def freeze(names: Iterable[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def get_slot_gpus(facts: dict[str, object], slot: int, slots: int) -> tuple[int, int]:
    """Return how many GPUs the slot has, and the memory of the smallest one; 0 if an older agent does not send it."""
    details = facts.get("gpu_details")
    if isinstance(details, list) and details:
        memory = [int(gpu.get("memory_bytes") or 0) for gpu in protocol.split_evenly(details, slot, slots)]
        return len(memory), min(memory, default=0)
    names = facts.get("gpus")
    return len(protocol.split_evenly(names, slot, slots)) if isinstance(names, list) else 0, 0


def load_windows(node: Node) -> list[Window]:
    """Return the node's windows if its owner lends it in windows. Then one query, unless they are prefetched."""
    return list(node.windows.all()) if node.available == Node.Available.WINDOWS else []


def get_seconds_left(node: Node, now: datetime) -> float | None:
    """Return the seconds until the owner wants the node back: 0 if it is not lent now, None if no end is near."""
    return lending_windows.get_seconds_left(
        load_windows(node), node.available, node.available_until, node.timezone, now
    )


def find_next_opening(node: Node, now: datetime) -> datetime | None:
    """Return when a node that is not lent now will be lent again, if that is known."""
    return lending_windows.find_next_opening(load_windows(node), node.available, node.timezone, now)


def get_time_zone(node: Node) -> ZoneInfo:
    """Return its owner's time zone; UTC if it is unknown."""
    return lending_windows.parse_time_zone(node.timezone) or ZoneInfo("UTC")
