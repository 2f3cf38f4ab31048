"""Work is shared in proportion to speed, moves make a swarm faster, and repairs give each micro-batch one holder."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.swarm import cover
from trainer.swarm.rebalance import Move, compute_stage_rate, propose_move
from trainer.swarm.router import NoPeersError, Router

SPEEDS = st.lists(st.floats(0.1, 10), min_size=1, max_size=8)


def build_router(speeds: list[float], seed: int = 0) -> Router:
    router = Router(seed)
    for number, speed in enumerate(speeds):
        router.add(f"peer {number}", speed)
    return router


@settings(deadline=None, max_examples=50)
@given(SPEEDS, st.integers(0, 9))
def test_work_is_shared_in_proportion_to_speed_at_all_times(speeds: list[float], seed: int) -> None:
    router, given_out = build_router(speeds, seed), Counter[str]()
    for _ in range(200):
        given_out[router.pick(1.0, 0.0)] += 1
        clocks = [given_out[f"peer {n}"] / speed for n, speed in enumerate(speeds)]
        # No peer is ahead of another by more than one task of its own.
        assert all(clock - 1 / speed <= min(clocks) + 1e-6 for clock, speed in zip(clocks, speeds, strict=True))


@settings(deadline=None, max_examples=50)
@given(SPEEDS, st.lists(st.tuples(st.integers(0, 7), st.floats(0, 50), st.floats(0, 50)), max_size=8), st.floats(0, 99))
def test_banned_peers_are_not_picked(speeds: list[float], bans: list[tuple[int, float, float]], now: float) -> None:
    router, until = build_router(speeds), dict.fromkeys((f"peer {n}" for n in range(len(speeds))), float("-inf"))
    for number, start, seconds in bans:
        name = f"peer {number % len(speeds)}"
        router.ban(name, start, seconds)
        until[name] = max(until[name], start + seconds)
    free = {name for name, end in until.items() if end <= now}
    if free:
        assert {router.pick(1.0, now) for _ in range(5)} <= free
    else:
        with pytest.raises(NoPeersError) as caught:
            router.pick(1.0, now)
        assert caught.value.until == min(until.values())


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 6), st.integers(1, 30), st.floats(1, 1e5))
def test_work_before_the_first_observation_starves_no_peer(peers: int, at_first: int, speed: float) -> None:
    router = Router()
    for number in range(peers):
        router.add(f"peer {number}")
    for peer in [router.pick(32.0, 0.0) for _ in range(at_first)]:
        router.observe(peer, 32.0, 32.0 / speed)
    given_out = Counter[str]()
    for _ in range(10 * peers):
        peer = router.pick(32.0, 0.0)
        given_out[peer] += 1
        router.observe(peer, 32.0, 32.0 / speed)
    assert set(given_out.values()) <= {9, 10, 11}


# --- rebalancing ------------------------------------------------------------------------------------------------------

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


# --- repairs ----------------------------------------------------------------------------------------------------------

LEDGERS = st.dictionaries(
    st.integers(0, 3), st.dictionaries(st.sampled_from("abcde"), st.sets(st.integers(0, 7)), min_size=1), min_size=1
)


@given(LEDGERS)
def test_reset_and_rerun_give_an_exact_cover(ledgers: dict[int, dict[str, set[int]]]) -> None:
    left = {}
    for stage, peers in ledgers.items():
        resets = cover.peers_to_reset({stage: peers})
        left[stage] = {peer: set() if peer in resets else held for peer, held in peers.items()}
    needs = cover.find_missing(left, 8)
    for number, stages in needs.items():
        for stage in stages:
            next(iter(left[stage].values())).add(number)
    assert cover.is_exact_cover(left, 8)
    assert not cover.find_missing(left, 8)


def test_repairs_are_as_few_as_possible() -> None:
    ledgers = {0: {"a": {0, 1}, "b": {2}}, 1: {"c": {0, 1, 2}, "d": set[int]()}}
    assert cover.is_exact_cover(ledgers, 3)
    assert not cover.peers_to_reset(ledgers)
    assert not cover.find_missing(ledgers, 3)
    assert cover.peers_to_reset({0: {"a": {0}, "b": {0, 1, 2}}}) == ["a"], "the smaller holder"
    assert cover.find_missing({0: {"a": {0, 1}}, 1: {"b": {1}}, 2: {"c": set()}}, 2) == {0: (1, 2), 1: (2,)}
