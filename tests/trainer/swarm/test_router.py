"""Routing: work is shared in proportion to speed, and banned peers get none."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_new_and_unbanned_peers_are_not_flooded() -> None:
    router = build_router([1.0, 1.0])
    router.ban("peer 1", 0.0, 30.0)
    assert {router.pick(1.0, 0.0) for _ in range(100)} == {"peer 0"}
    router.add("late", 1.0)
    counts = Counter(router.pick(1.0, 31.0) for _ in range(30))
    assert all(counts[peer] in (9, 10, 11) for peer in ("peer 0", "peer 1", "late"))


def test_throughput_is_a_moving_average() -> None:
    router = Router()
    router.add("a")
    router.add("b")
    assert router.get_throughput("a") == 1.0
    router.observe("b", 6.0, 2.0)
    assert router.get_throughput("b") == 3.0
    assert router.get_throughput("a") == 3.0, "without observations: the others' median"
    for _ in range(50):
        router.observe("b", 1.0, 1.0)
    assert router.get_throughput("b") == pytest.approx(1.0, abs=0.01)
    router.add("b", 9.0)  # again
    router.observe("unknown", 1.0, 1.0)
    router.observe("b", 1.0, 0.0)
    assert router.get_throughput("b") == pytest.approx(1.0, abs=0.01)


def test_dropped_peer_is_not_picked() -> None:
    router = build_router([1.0, 1.0])
    router.drop("peer 0")
    router.drop("peer 0")
    router.ban("peer 0", 0.0, 9.0)
    assert router.pick(1.0, 0.0) == "peer 1"
    router.drop("peer 1")
    with pytest.raises(NoPeersError) as caught:
        router.pick(1.0, 0.0)
    assert caught.value.until is None


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
