"""Detection of faulty or malicious peers. Pure functions: reports of peers go in, verdicts come out.

No single report removes a peer while others can confirm it: more than half of a neighboring stage has to blame it, or a
third peer of its stage has to reproduce the second one's result. In a stage of two, the longer-serving member wins. Not
covered: a dishonest majority of a stage.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

from torch import Tensor

OUTLIER_FACTOR = 100.0
"""A gradient of a hidden state this many times the median size is an outlier: another peer recomputes it."""
WARMUP_GRADIENTS = 4  # Gradients needed before the median is meaningful. Until then two peers compute each gradient.
STRIKE_WARMUP_GRADIENTS = 32  # The same for a peer whose gradient sum was wrong once
SUM_OUTLIER_FACTOR = 10.0
"""A gradient sum this many times the others' norm per micro-batch is an outlier: another peer recomputes it."""
TOLERANCES = {"fp32": 0.01, "bf16": 0.1, "fp16": 0.1, "fp8": 0.1}
"""Largest relative distance between two computations of one gradient, by the dtype of computation or transport."""


class GradientNormTracker:
    """Median size of the gradients that the next stage returned lately."""

    def __init__(self, warmup: int = WARMUP_GRADIENTS) -> None:
        self.sizes: deque[float] = deque(maxlen=64)
        self.warmup = warmup

    @property
    def is_ready(self) -> bool:
        return len(self.sizes) >= self.warmup

    def describe_outlier(self, gradient: Tensor) -> str:
        """Return why a gradient is an outlier, or an empty string."""
        size = max_abs(gradient)
        if not self.is_ready or size <= OUTLIER_FACTOR * median(self.sizes):
            return ""
        return f"a gradient {size / median(self.sizes):.0f} times the usual size"

    def observe(self, gradient: Tensor) -> None:
        """Record a gradient's size. Zeros carry no information: a head initialized to zero returns them at first."""
        if 0 < (size := max_abs(gradient)) < math.inf:
            self.sizes.append(size)


def max_abs(tensor: Tensor) -> float:
    return float(tensor.float().abs().amax())


def majority_vote(gradients: Mapping[str, Tensor], tolerance: float) -> list[str]:
    """Return the peers whose gradient of one micro-batch is right: the largest group that agrees.

    If no two agree there is no proof against any peer. Then the first one's is taken, or the shortest if the first is
    more than `OUTLIER_FACTOR` times as long.
    """
    norms = {peer: float(gradient.double().norm()) for peer, gradient in gradients.items()}

    def agree(one: str, other: str) -> bool:
        distance = float((gradients[one].double() - gradients[other].double()).norm())
        return distance <= tolerance * max(norms[one], norms[other])

    largest = max(([other for other in gradients if agree(peer, other)] for peer in gradients), key=len)
    if len(largest) > 1:
        return largest
    first, shortest = next(iter(gradients)), min(gradients, key=lambda peer: norms[peer])
    return [shortest] if norms[first] > OUTLIER_FACTOR * norms[shortest] > 0 else [first]


def peers_to_ban(ledgers: Mapping[int, Mapping[str, Any]], blamed: Mapping[str, str]) -> dict[str, str]:
    """Return the peers to ban and why: more than half of another stage, or the coordinator (`blamed`), blames them."""
    stage_by_peer = {name: stage for stage, peers in ledgers.items() for name in peers}
    verdicts = {name: reason for name, reason in blamed.items() if name in stage_by_peer}
    for stage, peers in ledgers.items():
        reports: dict[str, dict[str, str]] = {}  # For each blamed peer, those that blame it and why
        for reporter, ledger in peers.items():
            for blame in ledger.blamed:
                reports.setdefault(blame.peer, {})[reporter] = blame.why
        for name, reasons in reports.items():
            if name in stage_by_peer and stage_by_peer[name] != stage and 2 * len(reasons) > len(peers):
                verdicts[name] = next(iter(reasons.values()))
    return verdicts


def find_suspects(norms_by_voter: Mapping[str, Mapping[str, float]], held: Mapping[str, int]) -> dict[str, str]:
    """Return the peers of a stage whose gradient sum should be recomputed, and why.

    `norms_by_voter`: for each voter, the squared norms of the sums that it read from each peer; `held`: the number of
    micro-batches in each sum. A sum of n gradients is between sqrt(n) and n times as long as one, so the test compares
    these bounds instead of the norms.
    """
    suspects: dict[str, str] = {}
    for voter, norms in norms_by_voter.items():
        for peer, norm in norms.items():
            if peer == voter and len(norms) > 1:
                continue
            n = max(1, held.get(peer, 0))
            others = [math.sqrt(v / max(1, held.get(p, 0))) for p, v in norms.items() if p != peer and v > 0]
            if not math.isfinite(norm):
                suspects[peer] = "its gradient sum is not finite"
            elif not held.get(peer, 0) and norm > 0:
                suspects[peer] = "its gradient sum is not zero without any micro-batch"
            elif others and math.isfinite(median(others)) and math.sqrt(norm) / n > SUM_OUTLIER_FACTOR * median(others):
                suspects[peer] = f"its gradient sum is {math.sqrt(norm) / n / median(others):.0f} times the others'"
    return suspects


def get_tolerance(precision: str, wire: str) -> float:
    return max(TOLERANCES[precision], TOLERANCES[wire])
