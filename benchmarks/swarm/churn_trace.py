"""The trace of `benchmarks.swarm.churn`: peers join more by day than by night; sometimes a third leaves at once."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

HOUR = 3600.0
SPEEDS = (0.1, 0.16, 0.2, 0.4)  # Units of cost a second, equally likely: from a small GPU to one four times as fast
ARRIVALS = 14.0  # An hour, on average over a day
LIVES = ((0.4, 0.7), (0.6, 6.0))  # Shares of the peers, and how many hours they stay on average
WAVES = 4.0  # Mean number of hours between two moments at which every third peer is lost


@dataclass(frozen=True)
class Visit:
    """A peer of the trace."""

    name: str
    speed: float
    start: float
    stop: float


def generate_visits(hours: float, seed: int) -> list[Visit]:
    """Return the visits in the order of arrival. They depend on the seed only."""
    rng = random.Random(seed)
    end, now, visits = hours * HOUR, 0.0, []
    arrivals = [0.0] * round(ARRIVALS * sum(share * mean for share, mean in LIVES))
    while (now := now + rng.expovariate(1.8 * ARRIVALS / HOUR)) < end:
        by_day = 1 + 0.8 * math.sin(2 * math.pi * now / (24 * HOUR))
        if rng.random() < by_day / 1.8:
            arrivals.append(now)
    waves = list(itertools.takewhile(lambda wave: wave < end, iter_waves(rng)))
    for number, start in enumerate(arrivals):
        mean = LIVES[0][1] if rng.random() < LIVES[0][0] else LIVES[1][1]
        stop = start + rng.expovariate(1 / (mean * HOUR))
        stop = next((wave for wave in waves if start < wave < stop and rng.random() < 1 / 3), stop)
        visits.append(Visit(f"p{number:04d}", rng.choice(SPEEDS), start, min(stop, end)))
    return visits


def iter_waves(rng: random.Random) -> itertools.accumulate[float]:
    return itertools.accumulate(iter(lambda: rng.expovariate(1 / (WAVES * HOUR)), None))
