"""A record is clearly over the baseline and clearly over the record; copies break one in fewer than 1,000 tries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

from benchmarks.multiplier import nights
from tests.support.simulated_tracks import SIGMA, Night, curve, record
from trainer.scoring.multiplier.records import RecordCandidate, run_record_test


@pytest.mark.parametrize("index", range(7))
def test_record_false_positive_rate_is_below_one_in_1000(index: int) -> None:
    challenger = nights.CHALLENGERS[index]
    assert nights.measure_false_records(np.random.default_rng(index), challenger, 200_000) < 0.001


def test_clear_gain_beats_baseline_and_record() -> None:
    board = Night(seed=3).ladder().entry("old", 1.1, 3).entry("new", 1.25, 3).board()
    assert board.run_record_test("new", "old").is_record
    assert board.run_record_test("new").is_record
    assert not board.run_record_test("old", "new").is_record


def test_tie_with_record_is_no_record() -> None:
    judged = Night(seed=3).ladder().entry("old", 1.2, 3).entry("new", 1.21, 3).board().run_record_test("new", "old")
    assert judged.beats_baseline
    assert not judged.beats_record
    assert not judged.is_record


def test_statistic_at_equal_compute_is_t_statistic() -> None:
    night = Night(seed=8).ladder()
    night.records += [record("old", seed, 1.0, curve(0.1)) for seed in range(2)]
    night.records += [record("new", seed, 1.0, curve(0.2)) for seed in range(3)]
    board = night.board()
    judged = board.run_record_test("new", "old")
    plain = (curve(0.1) - curve(0.2)) / (float(board.ladder.sigma) * math.sqrt(1 / 2 + 1 / 3))
    assert float(judged.statistic) == pytest.approx(plain, rel=1e-9)
    assert judged.threshold == pytest.approx(student.ppf(0.9995, 17))


def test_statistic_at_other_compute_has_the_variance_of_curve_and_corrections() -> None:
    """By the documented formula, with derivatives of the gain by finite differences of the fitted coefficients."""
    night = Night(seed=8).ladder()
    night.records += [record("old", seed, 1.0, curve(0.1)) for seed in range(2)]
    night.records += [record("new", seed, 0.4, curve(-0.5)) for seed in range(3)]
    corrections = {"old": 0.4 * SIGMA, "new": 0.7 * SIGMA}
    for run in night.records:
        run["look_ahead_stderr"] = corrections.get(run["entry"], 0.0)
    board = night.board()
    ladder, new, old = board.ladder, board["new"], board["old"]

    def gain(coefficients: np.ndarray, old_loss: float) -> float:
        b0, b1, b2 = coefficients
        x = (-b1 - math.sqrt(b1**2 - 4 * b2 * (b0 - old_loss))) / (2 * b2) + math.log(0.4)
        return float(b0 + x * (b1 + x * b2) - new.loss)

    step, at = 1e-7, ladder.coefficients
    by_curve = [
        (gain(at + step * unit, old.loss) - gain(at - step * unit, old.loss)) / (2 * step) for unit in np.eye(3)
    ]
    by_record = (gain(at, old.loss + step) - gain(at, old.loss - step)) / (2 * step)
    sigma = float(ladder.sigma)
    variance = (sigma**2 + corrections["new"] ** 2) / 3 + by_record**2 * (sigma**2 + corrections["old"] ** 2) / 2
    variance += sigma**2 * float(np.array(by_curve) @ ladder.inverse @ np.array(by_curve))
    statistic = board.run_record_test("new", "old").statistic
    assert float(statistic) == pytest.approx(gain(at, old.loss) / math.sqrt(variance), rel=1e-5)


def test_same_loss_at_less_compute_is_credited() -> None:
    night = Night(seed=8).ladder()
    night.records += [record("old", seed, 1.0, curve(0.1)) for seed in range(3)]
    night.records += [record("new", seed, 0.8, curve(0.1)) for seed in range(3)]
    assert night.board().run_record_test("new", "old").is_record


def test_unresolvable_entry_is_no_record() -> None:
    night = Night().ladder(((1.0, 5),)).entry("new", 2.0, 3).entry("old", 1.1, 3)
    judged = night.board().run_record_test("new", "old")
    assert not judged.is_record
    assert not judged.beats_baseline


def measure_false_records_by_noise(factor: float, seeds: int, declared: bool) -> float:
    """Return how often a copy of the baseline is a record whose score has a correction with `factor` sigma of noise.

    `declared`: whether the test is told of the noise.
    """
    rng, trials, sigma = np.random.default_rng(5), 20_000, nights.DESIGN.sigma
    ladder, _ = nights.DESIGN.simulate_ladders(rng, trials)
    copy = nights.DESIGN.simulate_entry(rng, trials, 1.0, seeds)
    noise = rng.normal(0, factor * sigma, (trials, seeds)).mean(axis=-1)
    variance = (factor * sigma) ** 2 / seeds if declared else 0.0
    candidate = RecordCandidate(copy.loss + noise, 1.0, seeds, variance)
    return float(run_record_test(ladder, candidate, None).is_record.mean())


@pytest.mark.parametrize(("factor", "seeds"), [(3, 3), (10, 1)])
def test_noise_of_an_entrys_own_correction_makes_no_records(factor: float, seeds: int) -> None:
    assert measure_false_records_by_noise(factor, seeds, declared=False) > 0.03
    assert measure_false_records_by_noise(factor, seeds, declared=True) < 0.001


def test_board_adds_the_variance_of_the_correction_to_interval_record_and_ratio() -> None:
    night = Night(seed=3).ladder().entry("old", 1.1, 3).entry("new", 1.25, 3)
    plain = night.board()
    for run in night.records:
        if run["entry"] == "new":
            run["look_ahead_stderr"] = 30 * SIGMA
    noisy = night.board()
    assert noisy["new"].cm == plain["new"].cm
    assert (noisy["new"].low or 0) < 1 < (plain["new"].low or 0)
    assert plain.run_record_test("new", "old").is_record
    assert not noisy.run_record_test("new").is_record
    assert not noisy.run_record_test("new", "old").beats_record
    wide, narrow = noisy.ratio("new", "old"), plain.ratio("new", "old")
    assert wide.low < 1 < narrow.low
    assert (noisy["new"].seeds_needed or 99) > (plain["new"].seeds_needed or 0)
