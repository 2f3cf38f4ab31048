"""The best assignments of peers to stages: the baselines of `benchmarks.swarm.churn`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.swarm.churn_trace import Visit
from trainer.swarm.rebalance import choose_stage

COSTS = {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.4}
"""Cost of a micro-batch at each stage, forward and backward. That of the last stage includes the head."""
PASSES = 20  # Maximum number of passes over all visits in the search for a static assignment


def place_evenly(speeds: Mapping[str, float]) -> dict[str, int]:
    """Assign the fastest peers first to the stages that need them most: close to the optimum."""
    stages: dict[int, dict[str, float]] = {stage: {} for stage in COSTS}
    for name in sorted(speeds, key=lambda name: (-speeds[name], name)):
        stages[choose_stage(stages, costs=COSTS)][name] = speeds[name]
    return {name: stage for stage, peers in stages.items() for name in peers}


def compute_slowest_rate(speeds: Mapping[str, float], placed: Mapping[str, int]) -> float:
    """Return the rate of the slowest stage."""
    stages = dict.fromkeys(COSTS, 0.0)
    for name, stage in placed.items():
        stages[stage] += speeds[name] / COSTS[stage]
    return min(stages.values())


def find_best_fixed_stages(visits: Sequence[Visit]) -> dict[str, int]:
    """Return the best fixed stage of every visit, with knowledge of the future.

    Local search: move one visit at a time while the slowest stage's work over the whole time grows.
    """
    edges = np.unique([moment for v in visits for moment in (v.start, v.stop)])
    lengths, costs = np.diff(edges), np.array(list(COSTS.values()))
    parts = [slice(*np.searchsorted(edges, (v.start, v.stop))) for v in visits]
    rng, rates = np.random.default_rng(0), np.zeros((len(COSTS), len(lengths)))
    placed = rng.integers(len(COSTS), size=len(visits))
    for visit, part, stage in zip(visits, parts, placed, strict=True):
        rates[stage, part] += visit.speed / costs[stage]
    for _ in range(PASSES):
        before = placed.copy()
        for number in np.argsort([v.start - v.stop for v in visits]):
            part, speed = parts[number], visits[number].speed
            present = rates[:, part]
            present[placed[number]] -= speed / costs[placed[number]]
            # The slowest stage's work over this visit's time, were it at each of the stages in turn.
            others = np.stack([np.delete(present, stage, axis=0).min(axis=0) for stage in COSTS])
            joined = present + (speed / costs)[:, None]
            placed[number] = int((np.minimum(others, joined) @ lengths[part]).argmax())
            present[placed[number]] += speed / costs[placed[number]]
        if (before == placed).all():
            break
    return {visit.name: int(stage) for visit, stage in zip(visits, placed, strict=True)}
