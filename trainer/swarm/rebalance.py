"""Adaptive rebalancing (arXiv 2301.11913, 3.2): which peer should change its stage, and which stage a new one joins.

A stage's rate is the sum of its peers' speeds, and the run is as fast as its slowest stage. Pure: speeds are
arguments, in tokens per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Speeds = Mapping[int, Mapping[str, float]]  # For each stage, its peers and their speeds

REBALANCE_SECONDS = 300.0  # Interval of rebalancing, unless a stage has too few peers. From the paper.


class Move(NamedTuple):
    """A peer's move from one stage to another, between two steps."""

    peer: str
    source: int
    target: int


def propose_move(stages: Speeds, *, minimum: int = 2, gain: float = 0.10) -> Move | None:
    """Return the most useful move, or None if none is worth its cost.

    A stage with fewer than `minimum` peers comes first, and no stage is left with fewer. Otherwise the slowest stage
    gets a peer if afterwards both stages are faster than it was by more than `gain`. Each such move makes the slowest
    stage faster or reduces the number of equally slow stages, so there is a last move.
    """
    rates = {stage: compute_stage_rate(peers) for stage, peers in stages.items()}
    short = [stage for stage, peers in stages.items() if len(peers) < minimum]
    target = min(short or stages, key=lambda stage: (len(stages[stage]) if short else 0, rates[stage], stage))
    moves = [
        (compute_rate_after(stages, Move(peer, source, target)), Move(peer, source, target))
        for source, peers in stages.items()
        if source != target and len(peers) > minimum
        for peer in peers
    ]
    after, move = max(moves, default=(0.0, None))
    if move is None:
        return find_forced_move(stages, target) if short else None
    return move if short or after > (1 + gain) * rates[target] else None


def compute_rate_after(stages: Speeds, move: Move) -> float:
    """Return the rate of the slower of the two stages after a move."""
    source = {peer: speed for peer, speed in stages[move.source].items() if peer != move.peer}
    target = {**stages[move.target], move.peer: stages[move.source][move.peer]}
    return min(compute_stage_rate(source), compute_stage_rate(target))


def find_forced_move(stages: Speeds, target: int) -> Move | None:
    """Return the move to a stage without peers if no stage has peers to spare: the slowest peer of a pair."""
    pairs = [
        (speed, Move(peer, source, target))
        for source, peers in stages.items()
        if len(peers) > 1
        for peer, speed in peers.items()
    ]
    return min(pairs)[1] if pairs and not stages[target] else None


def choose_stage(stages: Speeds) -> int:
    """Return the stage that a new peer should join: one without peers, else the slowest."""
    return min(stages, key=lambda stage: (bool(stages[stage]), compute_stage_rate(stages[stage]), stage))


def compute_stage_rate(peers: Mapping[str, float]) -> float:
    """Return the tokens per second of a stage with these peers."""
    return sum(peers.values())
