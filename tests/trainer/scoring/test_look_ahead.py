"""The correction of a score for later tokens, in simulation and with real models."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.look_ahead import DISTANCES, simulate
from trainer.scoring.look_ahead import Correction, draw_positions, estimate_correction


def test_correction_of_causal_model_is_zero_within_its_error() -> None:
    rows = {row["case"]: row for row in simulate(True, trials=40, count=20_000, seed=3)}
    for name in ("float32", "bfloat16", "another device"):
        row = rows[f"honest, {name}"]
        assert abs(row["correction"]) < row["stderr"]


def test_corrected_score_of_any_model_is_the_one_without_later_tokens() -> None:
    for row in simulate(True, trials=60, count=20_000, seed=4):
        assert row["coverage"] > 0.85, row  # 95 % in a thousand trials; this many trials may miss by a tenth
        assert abs(row["error"]) < 3 * row["stderr"] / np.sqrt(60) + 1e-4, row


def test_interval_of_causal_model_without_the_allowance_covers_rounding() -> None:
    rows = simulate(True, trials=60, count=20_000, seed=5)[:3]
    assert all(0.85 < row["sampling_coverage"] <= row["coverage"] for row in rows)


def test_model_that_reads_late_tokens_has_a_row_for_each_distance() -> None:
    rows = {row["case"]: row for row in simulate(True, trials=2, count=20_000, seed=6)}
    corrections = [rows[f"reads the token at distance {distance:,}"]["correction"] for distance in DISTANCES]
    assert corrections == sorted(corrections, reverse=True)  # fewer positions have a token so far ahead
    assert corrections[-1] > 0


def test_weights_of_a_sample_are_unbiased() -> None:
    rng = np.random.default_rng(0)
    losses, reference = rng.random(50), rng.random(50) * 2
    differences = rng.random(50)
    estimates = []
    for _ in range(2000):
        sample = draw_positions(losses, reference, 20, rng)
        estimates.append(estimate_correction(sample, differences[sample.positions], np.zeros(0)).nats)
    assert np.mean(estimates) == pytest.approx(differences.mean(), abs=4 * np.std(estimates) / np.sqrt(2000))


@pytest.mark.parametrize(("nats", "is_beyond"), [(5e-3, True), (-5e-3, True), (3e-3, False), (-3e-3, False)])
def test_correction_of_either_sign_beyond_rounding_is_flagged(nats: float, is_beyond: bool) -> None:
    found = Correction(nats, stderr=1e-3, rounding=1e-3, unseen=0.0, least_rounding=1e-7, most_rounding=1e-2)
    assert found.is_beyond_rounding is is_beyond


def test_positions_without_gain_are_drawn_uniformly() -> None:
    sample = draw_positions(np.full(10, 5.0), np.zeros(10), 100, np.random.default_rng(0))
    assert np.allclose(sample.weights, 1.0)
    assert sample.undrawn_gain == 0
