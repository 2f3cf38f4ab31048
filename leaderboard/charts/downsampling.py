"""Levels of curve points: "level at least n" is a thinned curve, read through an index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from leaderboard.models.curves import MAX_LEVEL

EXTREMES_OF = ("loss", "gradient_norm")
OF_A_BUCKET = 2 * len(EXTREMES_OF)
RADIX = 6
"""`metrics_queries` selects whole buckets of 2^6, 2^12 and 2^18 steps: a superset in four terms."""

Known = tuple[int, Sequence[float | None]]


def level_for(last_step: int, count: int) -> int:
    """Return the lowest level with at most `count` points of a curve up to this step."""
    for level in range(MAX_LEVEL):
        if min(1 << level, OF_A_BUCKET) * ((last_step >> level) + 1) <= count - 2:
            return level
    return MAX_LEVEL


def compute_levels(points: Sequence[Known]) -> list[int]:
    """Return each point's level; points by step, each step once."""
    found = [0] * len(points)
    alive: list[int] = list(range(len(points)))
    for level in range(1, MAX_LEVEL + 1):
        alive = [i for bucket in group_buckets(points, alive, level) for i in find_extremes(points, bucket)]
        for i in alive:
            found[i] = level
        if len(alive) <= OF_A_BUCKET and points[alive[0]][0] >> level == points[alive[-1]][0] >> level:
            break  # one bucket: no larger one takes anything away
    for i in {*alive, 0, len(points) - 1} if points else ():
        found[i] = MAX_LEVEL
    return found


def group_buckets(points: Sequence[Known], alive: Iterable[int], level: int) -> Iterator[list[int]]:
    for _, bucket in groupby(alive, key=lambda i: points[i][0] >> level):
        yield list(bucket)


def find_extremes(points: Sequence[Known], bucket: list[int]) -> list[int]:
    """Return the bucket's first lowest and first highest of each value, in order; of one or two points both."""
    if len(bucket) <= 2:
        return bucket
    kept = set()
    for at in range(len(EXTREMES_OF)):
        known = [(value, i) for i in bucket if (value := points[i][1][at]) is not None]
        if known:
            kept |= {min(known)[1], max(known, key=lambda pair: (pair[0], -pair[1]))[1]}
    return sorted(kept)


def round_down(step: int) -> int:
    """Return the first step of the smallest whole bucket that may change with this step."""
    return step >> RADIX << RADIX
