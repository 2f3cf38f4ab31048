"""What a volunteer sees of a seat: stage, speed, bytes, and who it works with."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.node.status_display import RephraseStats, StatusDisplay
from trainer.sandbox.safe_files import read_json_object

if TYPE_CHECKING:
    from rich.console import RenderableType

STATUS = "status.json"
STATUS_BYTES = 256_000
UNITS = ("B", "kB", "MB", "GB", "TB")
NAMES_SHOWN = 8


class SwarmStatusDisplay(StatusDisplay):
    """Drawn from what the seat's process writes down each second."""

    def __init__(self, title: str, out: Path, say: Callable[[str], None], alone: bool = True) -> None:
        super().__init__(title, RephraseStats(), say, alone)
        self._out = out

    def status(self) -> dict[str, Any]:
        return read_json_object(self._out, STATUS, STATUS_BYTES) or {}

    def line(self) -> str:
        now = self.status()
        if not now.get("stages"):
            return "Knocking at the coordinator's door."
        if now["stage"] is None:
            return "Waits for a seat, which comes between two steps."
        return f"{format_stage(now)}; {format_speed(now)}; {format_traffic(now)}."

    def picture(self) -> RenderableType:
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold")
        table.add_column()
        for name, value in build_status_rows(self.status(), self._tally.seconds):
            table.add_row(name, Text(value))
        return Panel(table, title=Text(self._title), subtitle="Ctrl-C leaves between two steps; nothing is lost")


def build_status_rows(now: dict[str, Any], seconds: float) -> list[tuple[str, str]]:
    """Return what is shown, line by line."""
    clock = ("Time", time.strftime("%H:%M:%S", time.gmtime(seconds)))
    if not now.get("stages"):
        return [("Seat", "none yet: knocking at the coordinator's door"), clock]
    if now["stage"] is None:
        return [("Seat", "waiting for one, which comes between two steps"), clock]
    stage, members = now["stage"], now["members"]
    found = [("Seat", format_stage(now)), ("Speed", format_speed(now)), ("Traffic", format_traffic(now))]
    found += [("Hears from", "the coordinator" if stage == 0 else format_peer_names(members[stage - 1], now["me"]))]
    if stage + 1 < now["stages"]:
        found += [("Passes on to", format_peer_names(members[stage + 1], now["me"]))]
    found += [("Same stage", format_peer_names(members[stage], now["me"]) or "nobody else")]
    return [*found, ("Leaving", "at the end of this step") if now.get("leaving") else clock]


def format_stage(now: dict[str, Any]) -> str:
    return f"stage {now['stage'] + 1} of {now['stages']} of {now['arch']}, step {now['step']} of {now['steps']}"


def format_speed(now: dict[str, Any]) -> str:
    pace = now.get("tokens_per_second")
    return f"{pace:,.0f} tokens/s" if pace else "not measured yet"


def format_traffic(now: dict[str, Any]) -> str:
    return f"{format_bytes(now['bytes_in'])} in, {format_bytes(now['bytes_out'])} out"


def format_bytes(count: float) -> str:
    for unit in UNITS:
        if count < 1000 or unit == UNITS[-1]:
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def format_peer_names(peers: list[str], me: str) -> str:
    others = [peer for peer in peers if peer != me]
    more = f" and {len(others) - NAMES_SHOWN} more" if len(others) > NAMES_SHOWN else ""
    return ", ".join(others[:NAMES_SHOWN]) + more
