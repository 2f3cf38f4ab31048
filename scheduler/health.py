"""What nodes report about their own health: stored on their row, with an Event when something begins to go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.models import Event, Node
from trainer import protocol

WARNINGS = {
    "throttled": "A GPU of {name} is slowed down by heat or by its power supply.",
    "idle_gpu": "A job runs on {name}, and its GPU has had nothing to do for minutes.",
    "trouble": "{name} takes no job: {trouble}",
}


def record_health(node: Node, health: protocol.Health | None) -> bool:
    """Set the node's health and record Events of new warnings; return whether it changed. The caller saves the node."""
    report = node.health if health is None else health.model_dump(mode="json")
    if report == node.health:
        return False
    for message in find_new_warnings(node.health, report):
        Event.record(f"node:{node.name}", node, message.format(name=node.name, trouble=report["trouble"]))
    node.health = report
    return True


def find_new_warnings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [message for name, message in WARNINGS.items() if now[name] and now[name] != before.get(name)]
