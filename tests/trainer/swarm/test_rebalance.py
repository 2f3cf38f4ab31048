"""One move at a time makes a swarm faster, and moves come to an end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.swarm.rebalance import Move, choose_stage, propose_move, stage_rate

SWARMS = st.lists(st.lists(st.floats(0.2, 5), max_size=9), min_size=2, max_size=6)


def swarm_of(speeds: list[list[float]]) -> dict[int, dict[str, float]]:
    return {stage: {f"{stage}.{n}": speed for n, speed in enumerate(row)} for stage, row in enumerate(speeds)}


def made(stages: dict[int, dict[str, float]], move: Move) -> dict[int, dict[str, float]]:
    changed = {stage: dict(peers) for stage, peers in stages.items()}
    changed[move.target][move.peer] = changed[move.source].pop(move.peer)
    return changed


def slowest(stages: dict[int, dict[str, float]]) -> float:
    return min(stage_rate(peers, stage) for stage, peers in stages.items())


@settings(deadline=None, max_examples=50)
@given(SWARMS)
def test_moves_end_and_nobody_is_left_worse_off(speeds: list[list[float]]) -> None:
    stages = swarm_of(speeds)
    peers = sorted(name for row in stages.values() for name in row)
    for _ in range(200):
        move = propose_move(stages)
        if move is None:
            break
        after = made(stages, move)
        if all(len(row) >= 2 for row in stages.values()):
            assert slowest(after) >= slowest(stages)
        stages = after
    else:
        raise AssertionError("it never ends")
    assert sorted(name for row in stages.values() for name in row) == peers
    if len(peers) >= 2 * len(stages):
        assert all(len(row) >= 2 for row in stages.values())
    if len(peers) >= len(stages):
        assert all(stages.values())


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 6), st.integers(4, 12), st.randoms())
def test_equal_peers_end_up_evenly(stages: int, each: int, chance) -> None:
    rows: dict[int, dict[str, float]] = {stage: {} for stage in range(stages)}
    for number in range(stages * each):
        rows[chance.randrange(stages)][str(number)] = 1.0
    while move := propose_move(rows, gain=0.0):
        rows = made(rows, move)
    assert {len(row) for row in rows.values()} == {each}


def test_a_stage_that_is_short_of_peers_comes_first() -> None:
    stages = {0: {"a": 9.0}, 1: {"b": 1.0, "c": 1.0, "d": 1.0}, 2: {"e": 0.1, "f": 0.1}}
    move = propose_move(stages)
    assert move is not None
    assert (move.source, move.target) == (1, 0)


def test_an_empty_stage_gets_one_even_if_nobody_can_spare_one() -> None:
    assert propose_move({0: {}, 1: {"b": 1.0, "c": 2.0}}) == Move("b", 1, 0)
    assert propose_move({0: {"a": 1.0}, 1: {"b": 1.0, "c": 2.0}}) is None


def test_a_small_gain_is_not_worth_a_move() -> None:
    stages = {0: {f"a{n}": 1.0 for n in range(21)}, 1: {f"b{n}": 1.0 for n in range(19)}}
    assert propose_move(stages) is None
    assert propose_move(stages, gain=0.0) is not None


def test_dear_stages_need_more() -> None:
    stages = {0: {f"a{n}": 1.0 for n in range(6)}, 1: {f"b{n}": 1.0 for n in range(6)}}
    assert propose_move(stages) is None
    move = propose_move(stages, costs={0: 1.0, 1: 2.0})
    assert move is not None
    assert move.target == 1
    assert choose_stage(stages, costs={0: 1.0, 1: 2.0}) == 1


def test_newcomers_go_where_they_are_wanted_most() -> None:
    assert choose_stage({0: {"a": 3.0}, 1: {"b": 1.0, "c": 1.0}, 2: {}}) == 2
    assert choose_stage({0: {"a": 3.0}, 1: {"b": 1.0, "c": 1.0}}) == 1
