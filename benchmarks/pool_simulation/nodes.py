"""The synthetic pool: hardware, lending times, speeds and failures of nodes. All numbers are invented."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import time, timedelta

from django.contrib.auth.models import User

from benchmarks.pool_simulation.clock import START, VirtualClock
from scheduler import windows
from scheduler.models import Node, Window
from trainer import protocol

GB = 10**9
HOUR = 3600.0
DAY = 24 * HOUR
ZONES = ("Europe/Berlin", "America/New_York", "America/Los_Angeles", "Asia/Kolkata", "Asia/Tokyo", "Australia/Sydney")
TRACK = "playground"
"""The only track that some owners lend to."""


@dataclass(frozen=True)
class HardwareModel:
    label: str
    share: float
    """Share of the pool's nodes."""
    gpus: int
    memory_gb: int
    """Memory of each GPU."""
    speed: float
    """Speed of each GPU relative to an RTX 3090, by dense bf16 FLOP/s on the data sheets, rounded."""
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
SCHEDULES = {"always": 0.35, "nights": 0.30, "off-hours": 0.15, "weekends": 0.10, "bursts": 0.10}
"""Share of machines by lending schedule."""


@dataclass
class SimulatedNode:
    """A node, with properties that the pool does not know."""

    node: int
    hardware: HardwareModel
    speed: float
    failure_rate: float
    """Probability that a lease fails here because of the machine."""
    lending_times: list[tuple[float, float]]
    """Intervals in seconds of the virtual clock."""
    message: protocol.Poll
    schedule: str
    max_hours: float | None
    is_online: bool = False
    lease: int | None = None
    offered_seconds: float = 0.0
    """Its online time so far."""
    online_since: float = 0.0


def create_pool(count: int, days: float, rng: random.Random) -> list[SimulatedNode]:
    return [create_simulated_node(number, hardware, days, rng) for number, hardware in enumerate(sample_fleet(count))]


def sample_fleet(count: int) -> list[HardwareModel]:
    """Return `count` machines in the shares of `FLEET`, by adding the hardware that is furthest below its share."""
    have = [0] * len(FLEET)
    for number in range(1, count + 1):
        index = max(range(len(FLEET)), key=lambda index: FLEET[index].share * number - have[index])
        have[index] += 1
    return [hardware for hardware, share in zip(FLEET, have, strict=True) for _ in range(share)]


def create_simulated_node(number: int, hardware: HardwareModel, days: float, rng: random.Random) -> SimulatedNode:
    found = build_hardware(hardware, rng)
    trusted = hardware.gpus == 1 and number % 8 == 0
    max_hours = rng.choice((None, None, None, 12.0))
    schedule = "always" if trusted or hardware.gpus >= 4 else rng.choices(list(SCHEDULES), list(SCHEDULES.values()))[0]
    node = Node.objects.create(
        name=f"node-{number:05}",
        owner=User.objects.create(username=f"owner-{number:05}"),
        state=Node.State.ONLINE,
        labels=sorted(found.found_labels),
        hardware=found.model_dump(mode="json"),
        trusted=trusted,
        token_hash=f"{number:064}",
        timezone=rng.choice(ZONES),
        max_hours=max_hours,
        available=Node.Available.ALWAYS,
        **draw_owner_settings(trusted, rng),
    )
    return SimulatedNode(
        node=node.pk,
        hardware=hardware,
        speed=hardware.speed * rng.lognormvariate(0, 0.1),
        failure_rate=0.5 if rng.random() < 0.01 else 0.005,
        lending_times=draw_lending_times(node, schedule, days, rng),
        message=protocol.Poll(hardware=found, lanes=1),
        schedule=schedule,
        max_hours=max_hours,
    )


def draw_owner_settings(trusted: bool, rng: random.Random) -> dict[str, str]:
    serves = rng.choices(("everyone", "core", "track"), (0.9, 0.04, 0.06))[0]
    if trusted or serves == "everyone":
        return {}
    return {"serves": serves, "serves_track": TRACK if serves == "track" else ""}


def build_hardware(hardware: HardwareModel, rng: random.Random) -> protocol.Hardware:
    disk = rng.choice((200, 400, 600, 1000, 2000))
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


# --- lending times ---------------------------------------------------------------------------------------------------


def draw_lending_times(node: Node, schedule: str, days: float, rng: random.Random) -> list[tuple[float, float]]:
    """Create the node's windows; return its lending times until the end of the simulation."""
    horizon = days * DAY
    if schedule == "always":
        return [(0.0, horizon)]
    if schedule == "bursts":
        Node.objects.filter(pk=node.pk).update(available=Node.Available.UNTIL)
        return draw_bursts(horizon, rng)
    Node.objects.filter(pk=node.pk).update(available=Node.Available.WINDOWS)
    rows = [
        Window(node=node, weekday=day, start=start, end=end) for day, start, end in draw_weekly_windows(schedule, rng)
    ]
    return list_window_intervals(Window.objects.bulk_create(rows), node.timezone, horizon)


def draw_weekly_windows(schedule: str, rng: random.Random) -> list[tuple[int, time, time]]:
    evening, morning = time(rng.randint(19, 23)), time(rng.randint(6, 9))
    if schedule == "nights":
        return [(day, evening, morning) for day in range(7)]
    whole = [(day, time(0), time(0)) for day in (5, 6)]
    if schedule == "weekends":
        return [(4, evening, time(0)), *whole]
    return [*((day, evening, morning) for day in range(5)), *whole]


def list_window_intervals(rows: list[Window], zone: str, horizon: float) -> list[tuple[float, float]]:
    """Return the windows as intervals of the clock, by the site's own calendar."""
    found = {
        interval
        for week in range(int(horizon // (7 * DAY)) + 2)
        for interval in windows.list_intervals(rows, zone, START + timedelta(weeks=week))
    }
    seconds = sorted(((begin - START).total_seconds(), (end - START).total_seconds()) for begin, end in found)
    within = [(max(begin, 0.0), min(end, horizon)) for begin, end in seconds if begin < horizon and end > 0]
    return windows.merge_intervals(within)  # one that began before its week is listed twice


def draw_bursts(horizon: float, rng: random.Random) -> list[tuple[float, float]]:
    """Return one interval a week, half a day to two days long."""
    found = []
    for week in range(int(horizon // (7 * DAY)) + 1):
        begin = week * 7 * DAY + rng.uniform(0, 4) * DAY
        end = min(begin + rng.choice((12, 12, 24, 48)) * HOUR, horizon)
        if begin < end:
            found.append((begin, end))
    return found


def extend_burst(machine: SimulatedNode, end: float) -> None:
    """Set the end of the current burst as an owner does."""
    if machine.schedule == "bursts":
        Node.objects.filter(pk=machine.node).update(available_until=VirtualClock.to_datetime(end))
