"""Who comes and goes in `benchmarks.swarm.churn`: more by day than by night; now and then a third leaves at once."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

HOUR = 3600.0
SPEEDS = (0.1, 0.16, 0.2, 0.4)
"""Units of cost a second, all equally likely: from a small card to one four times as fast."""
ARRIVALS = 14.0
"""An hour, on average over a day."""
LIVES = ((0.4, 0.7), (0.6, 6.0))
"""Shares of the peers and how many hours they stay on average."""
WAVES = 4.0
"""Hours, on average, between two moments in which every third peer is lost."""


@dataclass(frozen=True)
class Visit:
    """A peer of the trace."""

    name: str
    speed: float
    start: float
    stop: float


def trace(hours: float, seed: int) -> list[Visit]:
    """Return who comes and goes, by when they come; a function of the seed alone."""
    chance = random.Random(seed)
    end, now, visits = hours * HOUR, 0.0, []
    begins = [0.0] * round(ARRIVALS * sum(share * mean for share, mean in LIVES))
    while (now := now + chance.expovariate(1.8 * ARRIVALS / HOUR)) < end:
        by_day = 1 + 0.8 * math.sin(2 * math.pi * now / (24 * HOUR))
        if chance.random() < by_day / 1.8:
            begins.append(now)
    waves = list(itertools.takewhile(lambda wave: wave < end, waves_from(chance)))
    for number, start in enumerate(begins):
        mean = LIVES[0][1] if chance.random() < LIVES[0][0] else LIVES[1][1]
        stop = start + chance.expovariate(1 / (mean * HOUR))
        stop = next((wave for wave in waves if start < wave < stop and chance.random() < 1 / 3), stop)
        visits.append(Visit(f"p{number:04d}", chance.choice(SPEEDS), start, min(stop, end)))
    return visits


def waves_from(chance: random.Random) -> itertools.accumulate[float]:
    return itertools.accumulate(iter(lambda: chance.expovariate(1 / (WAVES * HOUR)), None))
