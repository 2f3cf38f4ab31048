"""Repairs until each (stage, micro-batch) is held exactly once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainer.swarm import cover

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
