"""A record is clearly over the baseline and clearly over the record; copies break one in fewer than 1,000 tries."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import t as student

from tests.support.simulated_tracks import Night, curve, record, simulation


@pytest.fixture(scope="module")
def sim() -> ModuleType:
    return simulation()


@pytest.mark.parametrize("index", range(7))
def test_fewer_than_one_pretender_in_a_thousand_becomes_a_record(sim: ModuleType, index: int) -> None:
    pretender = sim.PRETENDERS[index]
    assert sim.false_records(np.random.default_rng(index), pretender, 200_000) < 0.001


def test_a_clear_gain_is_a_record_over_both() -> None:
    board = Night(seed=3).ladder().entry("old", 1.1, 3).entry("new", 1.25, 3).board()
    assert board.run_record_test("new", "old").is_record
    assert board.run_record_test("new").is_record
    assert not board.run_record_test("old", "new").is_record


def test_a_gain_over_the_baseline_that_ties_with_the_record_is_none() -> None:
    judged = Night(seed=3).ladder().entry("old", 1.2, 3).entry("new", 1.21, 3).board().run_record_test("new", "old")
    assert judged.beats_baseline
    assert not judged.beats_record
    assert not judged.is_record


def test_the_statistic_at_equal_compute_is_the_plain_formula() -> None:
    night = Night(seed=8).ladder()
    night.records += [record("old", seed, 1.0, curve(0.1)) for seed in range(2)]
    night.records += [record("new", seed, 1.0, curve(0.2)) for seed in range(3)]
    board = night.board()
    judged = board.run_record_test("new", "old")
    plain = (curve(0.1) - curve(0.2)) / (float(board.ladder.sigma) * math.sqrt(1 / 2 + 1 / 3))
    assert judged.statistic is not None
    assert float(judged.statistic) == pytest.approx(plain, rel=1e-9)
    assert judged.threshold == pytest.approx(student.ppf(0.9995, 17))


def test_less_compute_for_the_same_loss_is_credited() -> None:
    night = Night(seed=8).ladder()
    night.records += [record("old", seed, 1.0, curve(0.1)) for seed in range(3)]
    night.records += [record("new", seed, 0.8, curve(0.1)) for seed in range(3)]
    assert night.board().run_record_test("new", "old").is_record


def test_what_is_not_resolvable_wins_nothing() -> None:
    night = Night().ladder(((1.0, 5),)).entry("new", 2.0, 3).entry("old", 1.1, 3)
    judged = night.board().run_record_test("new", "old")
    assert not judged.is_record
    assert not judged.beats_baseline
