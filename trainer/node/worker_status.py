"""Live status of a swarm worker: stage, speed, traffic and peers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from trainer.sandbox.safe_files import read_json_object

STATUS_FILE = "status.json"
STATUS_BYTES = 256_000
UNITS = ("B", "kB", "MB", "GB", "TB")
MAX_NAMES = 8


def read_worker_status(out: Path) -> dict[str, Any]:
    """Return what the worker's process writes to its status file each second."""
    return read_json_object(out, STATUS_FILE, STATUS_BYTES) or {}


def format_worker_line(out: Path) -> str:
    status = read_worker_status(out)
    if not status.get("stages"):
        return "Connecting to the coordinator."
    if status["stage"] is None:
        return "Waiting for a stage. Stages are assigned between two steps."
    return f"{format_stage(status)}; {format_speed(status)}; {format_traffic(status)}."


def build_worker_rows(out: Path, started_at: float) -> list[tuple[str, str]]:
    """Return name and value of each row of the panel. `started_at`: by `time.monotonic`."""
    status = read_worker_status(out)
    clock = ("Time", time.strftime("%H:%M:%S", time.gmtime(time.monotonic() - started_at)))
    if not status.get("stages"):
        return [("Stage", "none yet: connecting to the coordinator"), clock]
    if status["stage"] is None:
        return [("Stage", "waiting for one; stages are assigned between two steps"), clock]
    stage, members, own_name = status["stage"], status["members"], status["me"]
    rows = [("Stage", format_stage(status)), ("Speed", format_speed(status)), ("Traffic", format_traffic(status))]
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
