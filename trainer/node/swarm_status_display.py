"""Live status of a swarm seat: stage, speed, traffic and peers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.node.status_display import RephraseStats, StatusDisplay, build_status_panel
from trainer.sandbox.safe_files import read_json_object

if TYPE_CHECKING:
    from rich.console import RenderableType

STATUS_FILE = "status.json"
STATUS_BYTES = 256_000
UNITS = ("B", "kB", "MB", "GB", "TB")
MAX_NAMES = 8


class SwarmStatusDisplay(StatusDisplay):
    """Shows what the seat's process writes to its status file each second."""

    def __init__(self, title: str, out: Path, log: Callable[[str], None], can_draw: bool = True) -> None:
        super().__init__(title, RephraseStats(), log, can_draw)
        self._out = out

    def read_status(self) -> dict[str, Any]:
        return read_json_object(self._out, STATUS_FILE, STATUS_BYTES) or {}

    def format_line(self) -> str:
        status = self.read_status()
        if not status.get("stages"):
            return "Connecting to the coordinator."
        if status["stage"] is None:
            return "Waiting for a seat. Seats are assigned between two steps."
        return f"{format_stage(status)}; {format_speed(status)}; {format_traffic(status)}."

    def build_panel(self) -> RenderableType:
        rows = build_seat_rows(self.read_status(), self._stats.seconds)
        return build_status_panel(self._title, rows, "Ctrl-C leaves between two steps; nothing is lost")


def build_seat_rows(status: dict[str, Any], seconds: float) -> list[tuple[str, str]]:
    """Return name and value of each row of the panel."""
    clock = ("Time", time.strftime("%H:%M:%S", time.gmtime(seconds)))
    if not status.get("stages"):
        return [("Seat", "none yet: connecting to the coordinator"), clock]
    if status["stage"] is None:
        return [("Seat", "waiting for one; seats are assigned between two steps"), clock]
    stage, members, own_name = status["stage"], status["members"], status["me"]
    rows = [("Seat", format_stage(status)), ("Speed", format_speed(status)), ("Traffic", format_traffic(status))]
    source = "the coordinator" if stage == 0 else format_peer_names(members[stage - 1], own_name)
    rows += [("Receives from", source)]
    if stage + 1 < status["stages"]:
        rows += [("Sends to", format_peer_names(members[stage + 1], own_name))]
    rows += [("Same stage", format_peer_names(members[stage], own_name) or "only this machine")]
    return [*rows, ("Leaving", "at the end of this step") if status.get("leaving") else clock]


def format_stage(status: dict[str, Any]) -> str:
    stage = f"stage {status['stage'] + 1} of {status['stages']} of {status['arch']}"
    return f"{stage}, step {status['step']} of {status['steps']}"


def format_speed(status: dict[str, Any]) -> str:
    speed = status.get("tokens_per_second")
    return f"{speed:,.0f} tokens/s" if speed else "not measured yet"


def format_traffic(status: dict[str, Any]) -> str:
    return f"{format_bytes(status['bytes_in'])} in, {format_bytes(status['bytes_out'])} out"


def format_bytes(count: float) -> str:
    for unit in UNITS:
        if count < 1000 or unit == UNITS[-1]:
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def format_peer_names(peers: list[str], own_name: str) -> str:
    others = [peer for peer in peers if peer != own_name]
    more = f" and {len(others) - MAX_NAMES} more" if len(others) > MAX_NAMES else ""
    return ", ".join(others[:MAX_NAMES]) + more
