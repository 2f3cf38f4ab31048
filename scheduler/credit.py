"""The credit for lent time: GPU-seconds in hours of an H100, by the devices' peak FLOP/s. Pure.

A lease counts for the seconds that its node's agent measured. Work of a lost lease after its last checkpoint is
repeated by another node, and counts for both. Nodes without a GPU earn CPU-hours, which are no part of an H100's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer import protocol
from trainer.accounting import peak_flops


def get_relative_speed(accelerator: str) -> float | None:
    """Return how many H100s one such device is worth; None where we have no figure for it."""
    figure = peak_flops.lookup_peak_flops(accelerator)
    return None if figure is None else figure / peak_flops.H100_PEAK_FLOPS


def convert_to_h100_hours(accelerator: str, gpu_seconds: float) -> float:
    """Return the credit for GPU-seconds of one kind of device; 0 for a kind without a figure."""
    return gpu_seconds / 3600 * (get_relative_speed(accelerator) or 0.0)


def describe_slot_gpus(hardware: Mapping[str, Any], slot: int, slots: int) -> tuple[int, str]:
    """Return (GPUs, their name) of a slot. Of different GPUs the slowest one counts for all: a job waits for it."""
    names = [str(gpu.get("name", "")) for gpu in hardware.get("gpu_details") or ()]
    mine = protocol.split_evenly(names or [str(name) for name in hardware.get("gpus") or ()], slot, slots)
    return len(mine), min(mine, key=lambda name: get_relative_speed(name) or 0.0)[:80] if mine else ""
