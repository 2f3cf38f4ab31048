"""Ladders that are short, irregular or contradictory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.simulated_tracks import FULL, Night, curve, record
from trainer.scoring.multiplier import ResultsError, compare_entries, parse_results


def test_ladder_of_two_rungs_is_linear() -> None:
    board = Night().ladder(((0.5, 3), (1.0, 3))).entry("new", 1.1, 3).board()
    ladder = board.to_dict()["ladder"]
    assert ladder["curvature"] is None
    assert ladder["slope"] == pytest.approx(-0.035, abs=0.003)
    assert board["new"].cm == pytest.approx(1.1, rel=0.05)
    assert board["new"].extrapolated


def test_ladder_of_one_rung_gives_no_multiplier() -> None:
    board = Night().ladder(((1.0, 10),)).entry("new", 1.1, 3).board()
    assert [row.cm for row in board.entries] == [None, None]
    assert board["new"].verdict == "not resolvable: the baseline has runs at one compute only"
    assert board["gpt"].verdict == board["new"].verdict
    assert board.to_dict()["ladder"]["slope"] is None
    assert board.to_dict()["ladder"]["sigma"] is not None


def test_baseline_without_repeats_gives_multiplier_without_interval() -> None:
    row = Night().ladder(((0.25, 1), (0.5, 1), (1.0, 1), (2.0, 1))).entry("new", 1.1, 3).board()["new"]
    assert row.cm == pytest.approx(1.1, rel=0.05)
    assert (row.low, row.high, row.seeds_needed) == (None, None, None)
    assert row.verdict == "not resolvable: the baseline was never repeated at one compute, so its noise is unknown"


def test_identical_repeats_give_no_noise_estimate() -> None:
    row = Night(sigma=0).ladder().entry("new", 1.1, 3).board()["new"]
    assert row.cm == pytest.approx(1.1, rel=1e-9)
    assert row.low is None
    assert row.verdict == "not resolvable: the baseline's repeats are identical, so its noise is unknown"


def test_uncertain_slope_gives_no_multiplier() -> None:
    row = Night(sigma=0.01).ladder(((0.5, 2), (0.7, 2), (1.0, 2))).entry("new", 1.1, 3).board()["new"]
    assert row.cm is None
    assert row.verdict in (
        "not resolvable: the baseline's slope is known to no better than 10 %",
        "not resolvable: the baseline's curve never reaches this loss",
    )


def test_rising_loss_gives_no_multiplier() -> None:
    rising = [record("gpt", seed, at, 1 + 0.01 * at + 0.0001 * seed) for at in (0.25, 0.5, 1.0) for seed in (0, 1)]
    board = compare_entries(parse_results([*rising, record("new", 0, 1.0, 1.005)]), "gpt")
    assert board["new"].verdict == "not resolvable: the baseline's loss does not fall with compute"
    assert board["new"].cm is None


def test_loss_below_curve_gives_no_multiplier() -> None:
    night = Night().ladder()
    night.records.append(record("miracle", 0, 1.0, 0.01))
    row = night.board()["miracle"]
    assert row.verdict == "not resolvable: the baseline's curve never reaches this loss"
    assert (row.cm, row.low, row.high, row.runs) == (None, None, None, 1)


@pytest.mark.parametrize(("multiplier", "extrapolated"), [(1.0, False), (1.9, False), (2.2, True), (0.1, True)])
def test_multiplier_beyond_rungs_is_flagged_as_extrapolated(multiplier: float, extrapolated: bool) -> None:
    row = Night(sigma=SMALL).ladder().entry("new", multiplier, 1).board()["new"]
    assert row.extrapolated is extrapolated


def test_ends_of_the_ladder_are_inside_up_to_rounding() -> None:
    ladder = Night(sigma=SMALL).ladder().board().ladder
    low, high = float(ladder.lowest), float(ladder.highest)
    points = np.array([low - 1e-8, low - 1e-10, low, high, high + 1e-10, high + 1e-8])
    assert ladder.is_inside(points).tolist() == [False, True, True, True, True, False]


def test_gain_without_larger_rung_is_extrapolated() -> None:
    board = (
        Night(sigma=SMALL).ladder(((0.25, 3), (0.5, 3), (1.0, 5))).entry("up", 1.05, 2).entry("down", 0.95, 2).board()
    )
    assert board["up"].extrapolated
    assert not board["down"].extrapolated


def test_full_budget_is_the_rung_with_most_runs() -> None:
    assert Night().ladder().board().ladder.full == FULL
    assert Night().ladder(((0.5, 3), (1.0, 3), (2.0, 3))).board().ladder.full == 2 * FULL
    assert Night().ladder().board(full=FULL / 2).ladder.full == FULL / 2


def test_compute_scatter_within_rung_does_not_widen_noise() -> None:
    night = Night(sigma=SMALL).ladder()
    for number, run in enumerate(night.records):
        at = run["flops"] / FULL * (1 + 0.01 * (number % 5 - 2))
        run["flops"], run["bits_per_byte"] = FULL * at, run["bits_per_byte"] - curve(run["flops"] / FULL) + 0.0
        run["bits_per_byte"] = curve(math.log(at)) + SMALL * (number % 3 - 1)
    ladder = night.board().ladder
    assert ladder.freedom == 17
    assert float(ladder.sigma) < 3 * SMALL


def test_outer_rungs_off_the_parabola_are_left_out() -> None:
    night = Night().ladder()
    for run in night.records:
        if run["flops"] < FULL / 3:
            run["bits_per_byte"] += 0.02
    ladder = night.entry("new", 1.1, 3).board().ladder
    assert ladder.is_narrowed
    assert float(ladder.coefficients[1]) == pytest.approx(-0.034, rel=0.1)
    assert ladder.freedom == 17  # the noise is pooled over all rungs


def test_runs_with_same_seed_and_rung_are_averaged() -> None:
    night = Night().ladder().entry("new", 1.1, 2)
    assert compare_entries(parse_results(night.records * 2), "gpt").to_dict() == night.board().to_dict()


def test_full_budget_in_wrong_unit_raises() -> None:
    with pytest.raises(ResultsError, match="far from all runs of the baseline"):
        Night().ladder().board(full=3600.0)


SMALL = 1e-6
"""Noise far below every tolerance of these tests."""
