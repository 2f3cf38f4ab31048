"""Rebalancing: each move makes a swarm faster, and moves end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.swarm.rebalance import Move, choose_stage, compute_stage_rate, propose_move

SWARMS = st.lists(st.lists(st.floats(0.2, 5), max_size=9), min_size=2, max_size=6)


def build_swarm(speeds: list[list[float]]) -> dict[int, dict[str, float]]:
    return {stage: {f"{stage}.{n}": speed for n, speed in enumerate(row)} for stage, row in enumerate(speeds)}


def apply_move(stages: dict[int, dict[str, float]], move: Move) -> dict[int, dict[str, float]]:
    changed = {stage: dict(peers) for stage, peers in stages.items()}
    changed[move.target][move.peer] = changed[move.source].pop(move.peer)
    return changed


def find_slowest_stage(stages: dict[int, dict[str, float]]) -> float:
    return min(compute_stage_rate(peers) for peers in stages.values())


@settings(deadline=None, max_examples=50)
@given(SWARMS)
def test_moves_end_and_never_slow_the_swarm(speeds: list[list[float]]) -> None:
    stages = build_swarm(speeds)
    peers = sorted(name for row in stages.values() for name in row)
    for _ in range(200):
        move = propose_move(stages)
        if move is None:
            break
        after = apply_move(stages, move)
        if all(len(row) >= 2 for row in stages.values()):
            assert find_slowest_stage(after) >= find_slowest_stage(stages)
        stages = after
    else:
        raise AssertionError("moves do not end")
    assert sorted(name for row in stages.values() for name in row) == peers
    if len(peers) >= 2 * len(stages):
        assert all(len(row) >= 2 for row in stages.values())
    if len(peers) >= len(stages):
        assert all(stages.values())


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 6), st.integers(4, 12), st.randoms())
def test_equal_peers_are_spread_evenly(stages: int, each: int, chance) -> None:
    rows: dict[int, dict[str, float]] = {stage: {} for stage in range(stages)}
    for number in range(stages * each):
        rows[chance.randrange(stages)][str(number)] = 1.0
    while move := propose_move(rows, gain=0.0):
        rows = apply_move(rows, move)
    assert {len(row) for row in rows.values()} == {each}


def test_stage_short_of_peers_comes_first_and_a_small_gain_gives_no_move() -> None:
    stages = {0: {"a": 9.0}, 1: {"b": 1.0, "c": 1.0, "d": 1.0}, 2: {"e": 0.1, "f": 0.1}}
    move = propose_move(stages)
    assert move is not None
    assert (move.source, move.target) == (1, 0)
    assert propose_move({0: {}, 1: {"b": 1.0, "c": 2.0}}) == Move("b", 1, 0)
    assert propose_move({0: {"a": 1.0}, 1: {"b": 1.0, "c": 2.0}}) is None
    stages = {0: {f"a{n}": 1.0 for n in range(21)}, 1: {f"b{n}": 1.0 for n in range(19)}}
    assert propose_move(stages) is None
    assert propose_move(stages, gain=0.0) is not None


def test_new_peer_joins_empty_or_slowest_stage() -> None:
    assert choose_stage({0: {"a": 3.0}, 1: {"b": 1.0, "c": 1.0}, 2: {}}) == 2
    assert choose_stage({0: {"a": 3.0}, 1: {"b": 1.0, "c": 1.0}}) == 1
