"""What nodes say of their own state: kept on their row, and told to their owners when something begins to go wrong."""

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


def record_health(node: Node, health: protocol.Health | None) -> dict[str, Any]:
    """Return what is to be written to the node's row, with its Events; nothing where an older agent says nothing, or
    what the row says already."""
    said = node.health if health is None else health.model_dump(mode="json")
    if said == node.health:
        return {}
    for sentence in find_new_warnings(node.health, said):
        Event.record(f"node:{node.name}", node, sentence.format(name=node.name, trouble=said["trouble"]))
    node.health = said
    return {"health": said}


def find_new_warnings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the sentences about what begins to go wrong now."""
    return [sentence for what, sentence in WARNINGS.items() if now[what] and now[what] != before.get(what)]
