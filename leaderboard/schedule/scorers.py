"""Whether a track's runs can be scored, and in time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from leaderboard import scoring_work
from leaderboard.models import Track
from leaderboard.schedule.planned_night import PlannedNight
from scheduler import matching, node_slots
from scheduler.models import Node


def describe_missing_scorer(track: Track, now: datetime) -> str:
    """Return what a scorer of the track must have if no trusted node that is online has it; empty if one has.

    Two queries. The hours in which nodes are lent do not count.
    """
    scoring = PlannedNight(track, now, None, ()).scoring
    for node in Node.objects.filter(state=Node.State.ONLINE, trusted=True).prefetch_related("windows"):
        for number in range(max(node.slots, 1)):
            slot = replace(node_slots.build_node_slot(node, now, slot=number), seconds_left=None)
            if matching.find_obstacle(scoring, slot) is None:
                return ""
    return matching.describe_needs(scoring)


@dataclass(frozen=True)
class ScorerTime:
    """Expected scoring time of a night on an online scorer."""

    node: str
    device: str  # its GPU; empty: its CPU
    seconds: float | None
    """None if the GPU is unknown."""
    is_fitting: bool
    """Whether it may get the job. A track for GPUs is not scored on a CPU."""

    def __str__(self) -> str:
        return f"{self.node} ({self.device or 'CPU'})"


def list_scorer_times(night: PlannedNight) -> list[ScorerTime]:
    """Return the times of the trusted nodes that may score the night, and of those that lack a GPU for it.

    Empty if the work of scoring is not known, too.
    """
    test_bytes = night.track.season.get_dataset_bytes("test")
    work = scoring_work.compute_scoring_work(night.run, night.track.suite, test_bytes)
    if work is None:
        return []
    trusted = [(slot.node_slot.node or 0, slot.node_slot) for slot in night.slots if slot.node_slot.trusted]
    fitting = {node for node, slot in trusted if matching.find_obstacle(night.scoring, slot) is None}
    without_gpu = {node for node, slot in trusted if night.scoring.needs_gpus and not slot.gpus}
    nodes = Node.objects.filter(pk__in=fitting | without_gpu).order_by("name")
    devices = [(node, node.hardware.get("gpus") or ("",)) for node in nodes]
    return [
        ScorerTime(node.name, gpus[0], work.estimate_seconds(gpus[0]), node.pk in fitting) for node, gpus in devices
    ]
