"""Which job should this node get now? Pure: frozen facts in, a choice out.

Jobs that are alike in everything that matters here wait in one **line**, and only the one that has waited longest
competes. So the choice costs as much as there are different lines, however many jobs wait in each.

The order: priority, then impact, then shorter, then the author who had less lately, then age. Age also lifts: each
`LIFT` of waiting counts like the next higher priority, without end, so nothing starves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

LIFT = timedelta(hours=24)
"""One night of waiting is worth one step of priority: a ladder run goes before tonight's train after four. A guess."""
STEP = 10
"""Distance between two priorities (`Job.Priority`)."""


@dataclass(frozen=True, kw_only=True)
class Seeker:
    """A node that asks for work."""

    labels: frozenset[str]
    trusted: bool
    sandboxed: bool
    """False where jobs run with the node's own rights."""
    disk_free_bytes: int
    node: int | None = None
    owner: int | None = None
    """User id; None where the node belongs to nobody but the site."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Jobs that are alike, by what they need and how they rank."""

    priority: int
    impact: int
    expected_seconds: float
    author: str
    needs_labels: tuple[str, ...]
    needs_trusted: bool
    needs_sandbox: bool
    needs_disk_bytes: int
    excluded_nodes: tuple[int, ...] = ()
    excluded_owners: tuple[int, ...] = ()
    waiting_since: datetime
    """When the first of the line was queued."""


def order(lines: Iterable[Line], node: Seeker, used: Mapping[str, float], now: datetime) -> list[Line]:
    """Return the lines that this node may serve, best first. `used`: seconds each author had lately."""
    return sorted(
        (line for line in lines if obstacle(line, node) is None),
        key=lambda line: rank(line, used.get(line.author, 0.0), now),
    )


def rank(line: Line, used_seconds: float, now: datetime) -> tuple[int, int, int, float, datetime]:
    """Return the place of a line; lower goes first."""
    return (level(line, now), -line.impact, length(line.expected_seconds), used_seconds, line.waiting_since)


def level(line: Line, now: datetime) -> int:
    """Return the priority as lifted by age."""
    return line.priority - STEP * max(0, math.floor((now - line.waiting_since) / LIFT))


def length(seconds: float) -> int:
    """Return the class of a job's length: each is twice as long as the one before, so near lengths tie."""
    return math.floor(math.log2(max(seconds, 1.0)))


def obstacle(line: Line, node: Seeker) -> str | None:
    """Return why this node may not serve the line, as the rest of a sentence ("waits for a node ..."), or None."""
    if line.needs_trusted and not node.trusted:
        return "that is trusted to score"
    if line.needs_sandbox and not node.sandboxed:
        return "with a sandbox"
    if node.node in line.excluded_nodes or node.owner in line.excluded_owners:
        return "that has nothing to do with the people or the result to be checked"
    if missing := sorted(set(line.needs_labels) - node.labels):
        return f"labelled {', '.join(missing)}"
    if line.needs_disk_bytes > node.disk_free_bytes:
        return f"with {line.needs_disk_bytes / 1e9:.0f} GB of free disk"
    return None


def why_idle(lines: Collection[Line], node: Seeker) -> str:
    """Return a sentence for the sponsor whose node gets nothing."""
    if not lines:
        return "The queue is empty."
    obstacles = sorted({text for line in lines if (text := obstacle(line, node)) is not None})
    if not obstacles:
        return "Another node was faster."
    return f"What waits needs a node {'; or one '.join(obstacles[:3])}."
