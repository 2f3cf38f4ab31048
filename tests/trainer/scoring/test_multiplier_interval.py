"""Intervals have their nominal coverage, records are rarely false, and what holds for any track.

Copies of the baseline break a record in fewer than 1,000 tries.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from benchmarks.multiplier import nights
from tests.support.simulated_tracks import FULL, LADDER, SIGMA, Night, curve, record
from trainer.scoring.multiplier import compare_entries, parse_results
from trainer.scoring.multiplier.records import RecordCandidate, run_record_test

TRIALS = 4_000


@pytest.mark.parametrize("multiplier", [1.0, 1.05, 1.2])
@pytest.mark.parametrize(("runs", "quoted"), [(1, 0.022), (2, 0.016), (3, 0.0135)])
def test_interval_coverage_and_width_match_documentation(multiplier: float, runs: int, quoted: float) -> None:
    found = nights.measure_coverage(np.random.default_rng(runs), nights.DESIGN, multiplier, runs, TRIALS)
    assert 0.93 <= found.rate <= 0.97
    assert found.half_width == pytest.approx(quoted, abs=0.0006)
    assert found.resolved == 1


def test_interval_covers_truth_for_bending_curve() -> None:
    bending = nights.Setting("", rungs=nights.FIVE_TIMES_THREE, sigma=0.003, curve=nights.small_model)
    assert 0.93 <= nights.measure_coverage(np.random.default_rng(1), bending, 1.05, 3, TRIALS).rate <= 0.97


def test_equal_entries_differ_in_one_night_of_twenty() -> None:
    assert nights.measure_false_separations(np.random.default_rng(2), 1.05, (1, 3), TRIALS) == pytest.approx(
        0.05, abs=0.012
    )


def test_multiplier_of_noiseless_file_is_exact_to_ten_digits() -> None:
    night = Night(sigma=1e-13).ladder().entry("new", 1.1, 2)
    assert night.board()["new"].cm == pytest.approx(1.1, rel=1e-9)


def test_estimates_match_the_formulas() -> None:
    night = Night(seed=3).ladder().entry("new", 1.08, 2)
    row, ladder = night.board()["new"], night.board().to_dict()["ladder"]
    runs = [r for r in night.records if r["entry"] == "gpt"]
    x = np.array([math.log(r["flops"] / FULL) for r in runs])
    loss = np.array([r["bits_per_byte"] for r in runs])
    b2, b1, b0 = np.polyfit(x, loss, 2)
    sigma = math.sqrt(sum(((loss[x == at] - loss[x == at].mean()) ** 2).sum() for at in set(x)) / 17)
    assert [ladder[k] for k in ("b0", "slope", "curvature", "sigma")] == pytest.approx([b0, b1, b2, sigma], rel=1e-9)
    mean = sum(r["bits_per_byte"] for r in night.records if r["entry"] == "new") / 2
    crossing = min(np.roots([b2, b1, b0 - mean]).real)
    g = np.array([1, crossing, crossing**2])
    covariance = sigma**2 * np.linalg.inv(np.vander(x, 3, increasing=True).T @ np.vander(x, 3, increasing=True))
    error = math.sqrt(sigma**2 / 2 + g @ covariance @ g) / abs(b1 + 2 * b2 * crossing)
    width = student.ppf(0.975, 17) * error
    expected = [math.exp(crossing), math.exp(crossing - width), math.exp(crossing + width)]
    assert [row.cm, row.low, row.high] == pytest.approx(expected, rel=1e-9)


def test_multiplier_of_same_loss_at_half_compute_is_two() -> None:
    night = Night(seed=1).ladder()
    night.records += [record("thrifty", seed, 0.5, curve(0.0)) for seed in range(3)]
    assert night.board()["thrifty"].cm == pytest.approx(2.0, rel=0.02)


NIGHTS = st.builds(
    lambda seed, first, second, runs: Night(seed).ladder().entry("a", first, runs).entry("b", second, 2),
    seed=st.integers(0, 2**32 - 1),
    first=st.floats(0.7, 1.6),
    second=st.floats(0.7, 1.6),
    runs=st.integers(1, 4),
)
few = settings(max_examples=40, deadline=None)


@few
@given(NIGHTS, st.floats(1e-12, 1e12))
def test_multiplier_is_independent_of_compute_unit(night: Night, unit: float) -> None:
    other = [{**record, "flops": record["flops"] * unit} for record in night.records]
    for one, two in zip(night.board().entries, compare_entries(parse_results(other), "gpt").entries, strict=True):
        assert (one.entry, one.verdict, one.tied_with) == (two.entry, two.verdict, two.tied_with)
        for before, after in ((one.cm, two.cm), (one.low, two.low), (one.high, two.high)):
            assert before == after if before is None else before == pytest.approx(after, rel=1e-8)


@few
@given(NIGHTS, st.randoms(use_true_random=False))
def test_comparison_is_independent_of_run_order(night: Night, shuffler: random.Random) -> None:
    shuffled = list(night.records)
    shuffler.shuffle(shuffled)
    assert compare_entries(parse_results(shuffled), "gpt").to_dict() == night.board().to_dict()


@few
@given(NIGHTS, st.floats(1e-5, 5e-3))
def test_multiplier_rises_as_loss_falls(night: Night, gain: float) -> None:
    before = night.board()["a"].cm
    for run in night.records:
        if run["entry"] == "a":
            run["bits_per_byte"] -= gain
    after = night.board()["a"].cm
    assert after > before


@few
@given(NIGHTS, st.floats(0.5, 2.0))
def test_multiplier_is_independent_of_full_budget(night: Night, factor: float) -> None:
    one, two = night.board(full=1e18), night.board(full=1e18 * factor)
    if not one.ladder.is_narrowed and not two.ladder.is_narrowed:
        assert one["a"].cm == pytest.approx(two["a"].cm, rel=1e-9)


@few
@given(NIGHTS)
def test_verdict_ties_and_interval_are_consistent(night: Night) -> None:
    board = night.board()
    rows = {row.entry: row for row in board.entries}
    for row in board.entries:
        if row.cm is None or row.low is None or row.high is None:
            assert row.verdict.startswith("not resolvable")
            continue
        assert row.low < row.cm < row.high
        assert (row.low <= 1 <= row.high) == (row.verdict in ("tied with the baseline", "the baseline"))
        assert all(row.entry in rows[other].tied_with for other in row.tied_with)
        assert row.seeds_needed is None or row.seeds_needed >= 0
    ranks = [row.rank for row in board.entries if row.rank is not None]
    assert ranks[0] == 1
    assert all(rank <= place for place, rank in enumerate(ranks, start=1))
    assert [row.cm for row in board.entries] == sorted((row.cm or 0 for row in board.entries), reverse=True)


@few
@given(st.integers(0, 2**32 - 1), st.floats(0.999, 1.001))
def test_rounded_compute_stays_in_its_rung(seed: int, rounding: float) -> None:
    exact, rounded = Night(seed).ladder().entry("a", 1.1, 2), Night(seed).ladder().entry("a", 1.1, 2)
    for run in rounded.records[::2]:
        run["flops"] *= rounding
    one, two = exact.board().ladder, rounded.board().ladder
    assert one.freedom == two.freedom == sum(seeds - 1 for _, seeds in LADDER)
    # A thousandth of compute is a tenth of sigma here.
    assert float(one.sigma) == pytest.approx(float(two.sigma), rel=0.15)


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
