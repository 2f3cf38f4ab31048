"""The interval has its nominal coverage and the documented width."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

from benchmarks.multiplier import nights
from tests.support.simulated_tracks import FULL, Night, curve, record

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
