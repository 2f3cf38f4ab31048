"""Who is believed. Pure: what peers say of each other goes in, verdicts come out.

Nobody is let go on the word of one peer where there are others to ask: a neighbouring stage has to blame it by more
than half, or a third peer of its own stage has to find what the second found. Where there are two only, the one that
has been here longer is believed. Not covered: a majority of a stage that is dishonest together.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

from torch import Tensor

HUGE = 100.0
"""Times the usual size above which a gradient of a hidden state is asked for once more, of another peer."""
SEEN = 4
"""Gradients that must have been seen before there is a usual size. Until then two peers compute each."""
DOUBTED = 32
"""The same for a peer whose sum was found wrong once."""
OUTLIER = 10.0
"""Times the others' norm for a micro-batch above which a peer's sum is computed again."""
CLOSE = {"fp32": 0.01, "bf16": 0.1, "fp16": 0.1}
"""How far two computations of one gradient may be apart, relative to its length, by what is sent or computed in."""


class Usual:
    """How large gradients usually are that come back from the next stage."""

    def __init__(self, enough: int = SEEN) -> None:
        self.sizes: deque[float] = deque(maxlen=64)
        self.enough = enough

    @property
    def known(self) -> bool:
        return len(self.sizes) >= self.enough

    def odd(self, gradient: Tensor) -> str:
        """Say so if this one is far larger."""
        size = largest(gradient)
        if not self.known or size <= HUGE * median(self.sizes):
            return ""
        return f"a gradient {size / median(self.sizes):.0f} times as large as usual"

    def take_in(self, gradient: Tensor) -> None:
        """A model whose head begins at zero has gradients of zero at first, which tell nothing."""
        if 0 < (size := largest(gradient)) < math.inf:
            self.sizes.append(size)


def largest(tensor: Tensor) -> float:
    return float(tensor.float().abs().amax())


def believed(said: Mapping[str, Tensor], tolerance: float) -> list[str]:
    """Return whose gradient is right, of those that several peers found of one micro-batch: what most got.

    Where no two agree that proves nothing against anybody: it is the first one's, if that is not `HUGE`, else the
    shortest.
    """
    lengths = {peer: float(found.double().norm()) for peer, found in said.items()}

    def agree(one: str, other: str) -> bool:
        apart = float((said[one].double() - said[other].double()).norm())
        return apart <= tolerance * max(lengths[one], lengths[other])

    most = max(([other for other in said if agree(peer, other)] for peer in said), key=len)
    if len(most) > 1:
        return most
    first, shortest = next(iter(said)), min(said, key=lambda peer: lengths[peer])
    return [shortest] if lengths[first] > HUGE * lengths[shortest] > 0 else [first]


def condemned(ledgers: Mapping[int, Mapping[str, Any]], own: Mapping[str, str]) -> dict[str, str]:
    """Return who is let go for what it sent, and why: blamed by more than half of another stage, or by the coordinator
    itself (`own`)."""
    home = {name: stage for stage, peers in ledgers.items() for name in peers}
    found = {name: why for name, why in own.items() if name in home}
    for stage, peers in ledgers.items():
        said: dict[str, list[str]] = {}
        for ledger in peers.values():
            for blame in ledger.blamed:
                said.setdefault(blame.peer, []).append(blame.why)
        for name, whys in said.items():
            if name in home and home[name] != stage and 2 * len(whys) > len(peers):
                found[name] = whys[0]
    return found


def suspects(read: Mapping[str, Mapping[str, float]], held: Mapping[str, int]) -> dict[str, str]:
    """Return whose sum should be computed again, and why. `read`: for each voter of a stage the squared norms of what
    it read of each peer's sum; `held`: how many micro-batches each holds.

    A sum of n gradients is between sqrt(n) and n times as long as one, so bounds are compared, not lengths.
    """
    found: dict[str, str] = {}
    for voter, norms in read.items():
        for peer, norm in norms.items():
            if peer == voter and len(norms) > 1:
                continue
            n = max(1, held.get(peer, 0))
            others = [math.sqrt(v / max(1, held.get(p, 0))) for p, v in norms.items() if p != peer and v > 0]
            if not math.isfinite(norm):
                found[peer] = "a sum that is not finite"
            elif not held.get(peer, 0) and norm > 0:
                found[peer] = "a sum of nothing that is not zero"
            elif others and math.isfinite(median(others)) and math.sqrt(norm) / n > OUTLIER * median(others):
                found[peer] = f"a sum {math.sqrt(norm) / n / median(others):.0f} times as long as the others'"
    return found


def close(precision: str, wire: str) -> float:
    return max(CLOSE[precision], CLOSE[wire])
