"""Efficiency of a swarm from the measured costs of one: its links, and the estimate for other shapes and machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.swarm.link import LinkShape

LINKS = {
    "loopback": LinkShape(),
    "1 Gbit/s, 5 ms": LinkShape(megabits=1000, milliseconds=5),
    "100 Mbit/s, 50 ms": LinkShape(megabits=100, milliseconds=50),
}
FEW, MANY = 4, 16  # Micro-batches of the measured steps
USUAL = 512  # Micro-batches of the estimated steps: times 128 tokens, an eighth of GPT-2's batch
ROWS, LENGTH = 2, 64  # Shape of a micro-batch
BLOCKS = 4  # Blocks of the model
BYTES = 2  # Bytes of a number sent (bf16)
DAEMON = 79e6  # Bytes a second, one way: encrypted throughput of two daemons on two cores, measured
EXCHANGES = 4  # Round trips of the coordinator at a step's end: ledgers, votes, updates, and one spare


def measured_efficiency(row: Mapping[str, Any], name: str) -> float:
    """Return the measured efficiency of two machines over a link, at `MANY` micro-batches a step."""
    return row["alone"]["many"] / row[name]["many"] / 2


def estimate_efficiency(
    row: Mapping[str, Any],
    width: int,
    stages: int,
    workers: int,
    link: LinkShape,
    speedup: float = 1.0,
    micro_batches: int = USUAL,
) -> float:
    """Return the efficiency of stages x workers machines, each `speedup` times as fast as the process measured alone.

    A worker computes while the link transfers. A micro-batch costs whichever is longer; computing includes the measured
    `overhead` of two stages on loopback, which share two cores. The pipeline fills once. At the end each worker reads
    the sums of the others (all-gather up to four, then butterfly), the coordinator makes its round trips, and each
    worker does the work of two stages with half the parameters, at a CPU's speed: most of it is hashing.
    """
    rate = min(DAEMON, link.megabits * 1e6 / 8 if link.megabits else DAEMON)
    trip = link.milliseconds / 1000
    one, two = row["alone"], row["loopback"]
    overhead = max(0.0, two["micro_batch"] - one["micro_batch"] / 2)
    transfer = ROWS * LENGTH * width * BYTES / rate * (2 if stages > 2 else 1)
    micro_batch = max((one["micro_batch"] / stages + overhead) / speedup, transfer)
    end = max(0.0, two["step"] - one["micro_batch"] / 2) * 2 / stages
    part = row["parameters"] / stages * BYTES
    read = part * (workers - 1 if workers <= 4 else 2 * (workers - 1) / workers) / rate
    step = micro_batches / workers * micro_batch + (stages - 1) * (micro_batch + trip) + read + end + EXCHANGES * trip
    return (micro_batches * one["micro_batch"] + one["step"]) / speedup / (step * stages * workers)


def scale_width(row: Mapping[str, Any], times: int) -> dict[str, Any]:
    """Return the costs of a model `times` as wide: they grow with the square, as its matrices do."""
    costs = {
        name: {part: row[name][part] * times**2 for part in ("micro_batch", "step")} for name in ("alone", "loopback")
    }
    return {"parameters": row["parameters"] * times**2, **costs}
