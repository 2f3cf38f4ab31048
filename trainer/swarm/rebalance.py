"""Which peer should change its stage ("adaptive swarm rebalancing", arXiv 2301.11913, 3.2), and where newcomers go.

A stage passes on as many micro-batches a second as its peers do together; the run is as fast as its slowest stage.
Pure: speeds are told, in units of cost a second, and so is what a micro-batch costs at each stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Speeds = Mapping[int, Mapping[str, float]]
"""For each stage, its peers and their speeds."""

EVERY = 300.0
"""Seconds between two looks, unless a stage has too few peers. The paper's."""


class Move(NamedTuple):
    """A peer that should leave one stage for another: at a step's boundary it loads the other's state."""

    peer: str
    source: int
    target: int


def propose(
    stages: Speeds, *, costs: Mapping[int, float] | None = None, minimum: int = 2, gain: float = 0.10
) -> Move | None:
    """Return the one move that helps most, or None if none is worth its price.

    A stage with fewer than `minimum` peers comes first, and no stage is left with fewer. Else the slowest stage gets a
    peer if then both stages, the one it leaves, too, are faster by more than `gain` than the slowest was. Each such
    move makes the slowest stage faster or leaves fewer that are as slow, so moves come to an end.
    """
    rates = {stage: rate(peers, stage, costs) for stage, peers in stages.items()}
    short = [stage for stage, peers in stages.items() if len(peers) < minimum]
    target = min(short or stages, key=lambda stage: (len(stages[stage]) if short else 0, rates[stage], stage))
    moves = [
        (worth(stages, costs, Move(peer, source, target)), Move(peer, source, target))
        for source, peers in stages.items()
        if source != target and len(peers) > minimum
        for peer in peers
    ]
    after, move = max(moves, default=(0.0, None))
    if move is None:
        return scraped(stages, target) if short else None
    return move if short or after > (1 + gain) * rates[target] else None


def worth(stages: Speeds, costs: Mapping[int, float] | None, move: Move) -> float:
    """Return the rate of the slower of the two stages after a move."""
    left = {peer: speed for peer, speed in stages[move.source].items() if peer != move.peer}
    more = {**stages[move.target], move.peer: stages[move.source][move.peer]}
    return min(rate(left, move.source, costs), rate(more, move.target, costs))


def scraped(stages: Speeds, target: int) -> Move | None:
    """Return who goes to a stage that has nobody, where no stage has one to spare: the slowest of a pair."""
    pairs = [
        (speed, Move(peer, source, target))
        for source, peers in stages.items()
        if len(peers) > 1
        for peer, speed in peers.items()
    ]
    return min(pairs)[1] if pairs and not stages[target] else None


def place(stages: Speeds, *, costs: Mapping[int, float] | None = None) -> int:
    """Return the stage that a newcomer should join: one without peers, else the slowest."""
    return min(stages, key=lambda stage: (bool(stages[stage]), rate(stages[stage], stage, costs), stage))


def rate(peers: Mapping[str, float], stage: int, costs: Mapping[int, float] | None = None) -> float:
    """Return the micro-batches a second of a stage with these peers."""
    return sum(peers.values()) / (costs[stage] if costs else 1.0)
