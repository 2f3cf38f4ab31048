"""The synthetic pool: who lends what, when, how fast it is and how often it falls silent. All of it invented."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import time, timedelta

from scheduler import windows
from scheduler.models import Node, Window
from scheduler.simulation.clock import START, VirtualClock
from trainer import protocol

GB = 10**9
HOUR = 3600.0
DAY = 24 * HOUR
ZONES = ("Europe/Berlin", "America/New_York", "America/Los_Angeles", "Asia/Kolkata", "Asia/Tokyo", "Australia/Sydney")
TRACK = "playground"
"""The one that some owners lend to alone."""


@dataclass(frozen=True)
class HardwareModel:
    label: str
    share: float
    """Of the pool."""
    gpus: int
    memory_gb: int
    """Of each GPU."""
    speed: float
    """Of each, in GeForce RTX 3090: dense bf16 on the data sheets, rounded."""
    hours_between_failures: float


FLEET = (
    HardwareModel("4060ti", 0.25, 1, 16, 0.6, 60),
    HardwareModel("a4500", 0.10, 1, 20, 0.7, 150),
    HardwareModel("3090", 0.27, 1, 24, 1.0, 60),
    HardwareModel("4090", 0.10, 1, 24, 2.3, 60),
    HardwareModel("3090", 0.10, 2, 24, 1.0, 60),
    HardwareModel("a100", 0.04, 4, 80, 4.4, 300),
    HardwareModel("h100", 0.05, 1, 80, 13.9, 300),
    HardwareModel("h100", 0.02, 8, 80, 13.9, 300),
    HardwareModel("", 0.07, 0, 0, 0.2, 100),
)
HABITS = {"always": 0.35, "nights": 0.30, "off-hours": 0.15, "weekends": 0.10, "bursts": 0.10}
"""When machines are lent, and the share of them."""


@dataclass
class SimulatedNode:
    """One node, and what the pool does not know of it."""

    node: int
    hardware: HardwareModel
    speed: float
    flaw: float
    """Probability that a lease fails here for reasons of the machine."""
    offered: list[tuple[float, float]]
    """When it is lent, in seconds of the clock."""
    message: protocol.Poll
    habit: str
    max_hours: float | None
    up: bool = False
    lease: int | None = None
    offered_seconds: float = 0.0
    """Time so far in which it was lent and there."""
    up_since: float = field(default=0.0)


def create_pool(count: int, days: float, draw: random.Random) -> list[SimulatedNode]:
    """Make the rows of `count` nodes and return what they stand for; the shares of the fleet hold exactly."""
    return [create_simulated_node(number, hardware, days, draw) for number, hardware in enumerate(sample_fleet(count))]


def sample_fleet(count: int) -> list[HardwareModel]:
    """Return `count` machines in the shares of `FLEET`, well mixed: always the one that lacks most."""
    have = [0] * len(FLEET)
    for number in range(1, count + 1):
        index = max(range(len(FLEET)), key=lambda index: FLEET[index].share * number - have[index])
        have[index] += 1
    return [hardware for hardware, share in zip(FLEET, have, strict=True) for _ in range(share)]


def create_simulated_node(number: int, hardware: HardwareModel, days: float, draw: random.Random) -> SimulatedNode:
    found = build_hardware(hardware, draw)
    trusted = hardware.gpus == 1 and number % 8 == 0
    max_hours = draw.choice((None, None, None, 12.0))
    habit = "always" if trusted or hardware.gpus >= 4 else draw.choices(list(HABITS), list(HABITS.values()))[0]
    node = Node.objects.create(
        name=f"node-{number:05}",
        state=Node.State.ONLINE,
        labels=sorted(found.found_labels),
        hardware=found.model_dump(mode="json"),
        trusted=trusted,
        token_hash=f"{number:064}",
        timezone=draw.choice(ZONES),
        max_hours=max_hours,
        available=Node.Available.ALWAYS,
        **draw_owner_settings(trusted, draw),
    )
    return SimulatedNode(
        node=node.pk,
        hardware=hardware,
        speed=hardware.speed * draw.lognormvariate(0, 0.1),
        flaw=0.5 if draw.random() < 0.01 else 0.005,
        offered=draw_lending_times(node, habit, days, draw),
        message=protocol.Poll(hardware=found, wait_seconds=0, lanes=1),
        habit=habit,
        max_hours=max_hours,
    )


def draw_owner_settings(trusted: bool, draw: random.Random) -> dict[str, str]:
    """Return for whom a machine is lent: most for everyone."""
    serves = draw.choices(("everyone", "core", "track"), (0.9, 0.04, 0.06))[0]
    if trusted or serves == "everyone":
        return {}
    return {"serves": serves, "serves_track": TRACK if serves == "track" else ""}


def build_hardware(hardware: HardwareModel, draw: random.Random) -> protocol.Hardware:
    """Return what such a machine says of itself."""
    disk = draw.choice((200, 400, 600, 1000, 2000))
    labels = [f"{disk}gb"]
    if hardware.gpus:
        labels += [f"{hardware.gpus}x{hardware.memory_gb}gb", f"{hardware.gpus}x{hardware.label}", hardware.label]
    card = protocol.Gpu(name=hardware.label, memory_bytes=hardware.memory_gb * GB)
    return protocol.Hardware(
        hostname="simulated",
        platform="Linux",
        python="3.11",
        cpus=16,
        memory_bytes=64 * GB,
        disk_free_bytes=disk * GB,
        gpus=(hardware.label,) * hardware.gpus,
        sandboxes=("bubblewrap",),
        gpu_details=(card,) * hardware.gpus,
        found_labels=tuple(labels),
    )


# --- when ------------------------------------------------------------------------------------------------------------


def draw_lending_times(node: Node, habit: str, days: float, draw: random.Random) -> list[tuple[float, float]]:
    """Give the node its windows, and return when it is lent until the end of the simulation."""
    horizon = days * DAY
    if habit == "always":
        return [(0.0, horizon)]
    if habit == "bursts":
        Node.objects.filter(pk=node.pk).update(available=Node.Available.UNTIL)
        return draw_bursts(horizon, draw)
    Node.objects.filter(pk=node.pk).update(available=Node.Available.WINDOWS)
    rows = [
        Window(node=node, weekday=day, start=start, end=end) for day, start, end in draw_weekly_windows(habit, draw)
    ]
    return list_window_intervals(Window.objects.bulk_create(rows), node.timezone, horizon)


def draw_weekly_windows(habit: str, draw: random.Random) -> list[tuple[int, time, time]]:
    evening, morning = time(draw.randint(19, 23)), time(draw.randint(6, 9))
    if habit == "nights":
        return [(day, evening, morning) for day in range(7)]
    whole = [(day, time(0), time(0)) for day in (5, 6)]
    if habit == "weekends":
        return [(4, evening, time(0)), *whole]
    return [*((day, evening, morning) for day in range(5)), *whole]


def list_window_intervals(rows: list[Window], zone: str, horizon: float) -> list[tuple[float, float]]:
    """Return the windows as stretches of the clock; the real calendar, asked week by week."""
    found = {
        stretch
        for week in range(int(horizon // (7 * DAY)) + 2)
        for stretch in windows.list_intervals(rows, zone, START + timedelta(weeks=week))
    }
    seconds = sorted(((begin - START).total_seconds(), (end - START).total_seconds()) for begin, end in found)
    return merge_overlapping(
        [(max(begin, 0.0), min(end, horizon)) for begin, end in seconds if begin < horizon and end > 0]
    )


def merge_overlapping(stretches: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join what overlaps: a week that is asked of from its middle shows a stretch cut short."""
    found: list[tuple[float, float]] = []
    for begin, end in stretches:
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def draw_bursts(horizon: float, draw: random.Random) -> list[tuple[float, float]]:
    """Return "this weekend" and its like: once a week, half a day to two days."""
    found = []
    for week in range(int(horizon // (7 * DAY)) + 1):
        begin = week * 7 * DAY + draw.uniform(0, 4) * DAY
        end = min(begin + draw.choice((12, 12, 24, 48)) * HOUR, horizon)
        if begin < end:
            found.append((begin, end))
    return found


def extend_burst(machine: SimulatedNode, end: float) -> None:
    """The owner of a machine that is lent in bursts says until when."""
    if machine.habit == "bursts":
        Node.objects.filter(pk=machine.node).update(available_until=VirtualClock.at(end))
