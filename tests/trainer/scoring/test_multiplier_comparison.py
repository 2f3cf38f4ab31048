"""Ladders, verdicts, ties, and the number of seeds that resolves a tie."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import fdtrc

from tests.support.simulated_tracks import FULL, SIGMA, Night, curve, record
from trainer.scoring.multiplier import ResultsError, TrackComparison, compare_entries, parse_results


def build_board(losses: dict[str, list[float]]) -> TrackComparison:
    """Return a board on which entries have these losses, over a ladder with noise."""
    night = Night(seed=4).ladder()
    for name, values in losses.items():
        night.records += [record(name, seed, 1.0, value) for seed, value in enumerate(values)]
    return night.board()


def test_verdicts_follow_the_interval() -> None:
    board = Night(seed=2).ladder().entry("up", 1.1, 3).entry("down", 0.9, 3).entry("same", 1.0, 3).board()
    assert board["up"].verdict == "better than the baseline"
    assert board["down"].verdict == "worse than the baseline"
    assert board["same"].verdict == "tied with the baseline"
    assert board["gpt"].verdict == "the baseline"
    assert board["gpt"].cm == pytest.approx(1, abs=0.01)
    assert board["same"].tied_with == ("gpt",)
    assert board["gpt"].tied_with == ("same",)
    assert (board.entries[0].entry, board.entries[-1].entry) == ("up", "down")


def test_indistinguishable_entries_share_a_rank() -> None:
    board = build_board({"a": [curve(0.2)] * 3, "b": [curve(0.2) + SIGMA / 4] * 3, "c": [curve(0.0) + SIGMA / 4] * 3})
    assert board["a"].tied_with == ("b",)
    assert board["b"].tied_with == ("a",)
    assert (board["a"].rank, board["b"].rank) == (1, 1)
    assert (board["gpt"].rank, board["c"].rank) == (3, 3)


def test_seeds_needed_is_the_fewest_that_exclude_one_from_the_interval() -> None:
    loss = curve(0.016)
    needed = build_board({"new": [loss]})["new"].seeds_needed
    assert needed > 1
    runs = [needed, needed + 1]
    verdicts = [build_board({"new": [loss] * count})["new"].verdict for count in runs]
    assert verdicts == ["tied with the baseline", "better than the baseline"]


def test_seeds_needed_of_a_tie_counts_runs_of_both_entries() -> None:
    one, other = curve(0.2), curve(0.215)
    needed = build_board({"a": [one], "b": [other]})["a"].seeds_needed
    assert needed > 0
    ties = [build_board({"a": [one] * count, "b": [other] * count})["a"].tied_with for count in (needed, needed + 1)]
    assert ties == [("b",), ()]


def test_seeds_needed_is_zero_without_tie_and_none_if_hopeless() -> None:
    board = build_board({"clear": [curve(0.5)], "same": [curve(0.0)], "twin": [curve(1.0)], "other": [curve(1.0)]})
    assert board["clear"].seeds_needed == 0
    assert board["same"].seeds_needed is None
    assert board["twin"].tied_with == ("other",)
    assert board["twin"].seeds_needed is None
    assert board["gpt"].seeds_needed == 0


def test_entry_with_excess_scatter_gets_no_interval() -> None:
    row = build_board({"wild": [curve(0.1) - 0.02, curve(0.1), curve(0.1) + 0.02]})["wild"]
    assert row.verdict == "not resolvable: its own runs scatter far more than the baseline's"
    assert (row.low, row.high) == (None, None)
    assert row.cm == pytest.approx(1.1, rel=0.02)


def test_entry_is_compared_at_rung_nearest_full_budget() -> None:
    night = Night(seed=1).ladder().entry("new", 1.5, 3, at=0.25).entry("new", 1.1, 2, at=1.0)
    assert night.board()["new"].runs == 2
    assert night.board()["new"].cm == pytest.approx(1.1, rel=0.03)
    assert night.board(full=2.5e17)["new"].cm == pytest.approx(1.5, rel=0.05)


def test_seconds_axis_uses_seconds() -> None:
    night = Night(seed=1).ladder().entry("slow", 1.2, 3)
    for run in night.records:
        if run["entry"] == "slow":
            run["seconds"] *= 1.5
    assert night.board(axis="seconds")["slow"].cm == pytest.approx(0.8, rel=0.03)
    assert night.board(axis="flops")["slow"].cm == pytest.approx(1.2, rel=0.03)


def test_run_voided_on_one_axis_counts_on_the_other() -> None:
    night = Night(seed=1).ladder().entry("new", 1.2, 3)
    for run in night.records[-3:]:
        run["seconds"] = None
    row = night.board(axis="seconds")["new"]
    assert (row.verdict, row.runs, row.cm) == ("not resolvable: no run has its compute on this axis", 0, None)
    assert night.board(axis="flops")["new"].runs == 3


def test_rows_without_interval_follow_those_with_one() -> None:
    night = Night(seed=1).ladder().entry("a", 0.9, 3).entry("b", 1.3, 3).entry("wild", 2.0, 3, sigma=0.02)
    night.records += [record("void", 0, 1.0, curve(0.1)) | {"flops": None}, record("off", 0, 1.0, 0.01)]
    assert [row.entry for row in night.board().entries] == ["b", "gpt", "a", "wild", "off", "void"]


def test_ties_are_listed_best_first() -> None:
    losses = {name: [curve(0.2) + gap * SIGMA / 4] * 3 for name, gap in {"a": 0, "b": 2, "c": 1}.items()}
    board = build_board(losses)
    assert [board[name].tied_with for name in "abc"] == [("c", "b"), ("a", "c"), ("a", "b")]


@pytest.mark.parametrize("runs", [2, 3])
@pytest.mark.parametrize(("probability", "has_interval"), [(0.00008, False), (0.00012, True)])
def test_scatter_is_judged_by_an_f_test_at_its_level(runs: int, probability: float, has_interval: bool) -> None:
    ladder = Night(seed=4).ladder().board().ladder
    ratios = np.geomspace(1, 1000, 200_001)
    ratio = ratios[np.searchsorted(-fdtrc(runs - 1, ladder.freedom, ratios), -probability)]
    deviation = float(ladder.sigma) * np.sqrt(ratio)
    spread = np.linspace(-1, 1, runs) * deviation / np.std(np.linspace(-1, 1, runs), ddof=1)
    row = build_board({"new": [curve(0.1) + float(each) for each in spread]})["new"]
    assert (row.low is not None) is has_interval


def test_entry_without_multiplier_has_no_ratio_to_the_baseline() -> None:
    board = Night(seed=1).ladder().entry("new", 1.1, 3).entry("wild", 1.1, 3, sigma=0.02).board()
    pairs = [("wild", "gpt"), ("gpt", "wild"), ("wild", "new"), ("new", "wild"), ("new", "gpt")]
    assert [ratio is None for ratio in board.ratios(pairs)] == [True, True, True, True, False]
    assert Night().ladder(((1.0, 5),)).entry("new", 1.1, 3).board().ratio("new", "gpt") is None


def test_ratio_of_two_entries_agrees_with_their_multipliers_and_ties() -> None:
    board = Night(seed=7).ladder().entry("good", 1.2, 3).entry("near", 1.19, 1).entry("bad", 0.8, 3).board()
    assert board["good"].tied_with == ("near",)
    for one, other in itertools.permutations([row.entry for row in board.entries], 2):
        ratio, back = board.ratio(one, other), board.ratio(other, one)
        if "gpt" not in (one, other):  # whose own multiplier is estimated, too
            assert ratio.cm == pytest.approx(board[one].cm / board[other].cm)
        assert (back.cm, back.low, back.high) == pytest.approx((1 / ratio.cm, 1 / ratio.high, 1 / ratio.low))
        assert (ratio.low <= 1 <= ratio.high) == (other in board[one].tied_with), (one, other)
    assert board.ratio("good", "bad").low < 1.5 < board.ratio("good", "bad").high


@pytest.mark.parametrize(("entries", "listed"), [(7, "e0, e1, e2, e3, e4, e5, e6, gpt"), (9, "e6, e7 and 2 more")])
def test_unknown_entry_error_lists_eight_entries(entries: int, listed: str) -> None:
    night = Night().ladder()
    for number in range(entries):
        night.entry(f"e{number}", 1.1, 1)
    with pytest.raises(ResultsError, match=rf"^No run is of 'gtp'\. Entries: .*{listed}\.$"):
        _ = night.board()["gtp"]


def test_row_as_json_has_its_numbers_with_ten_digits() -> None:
    row = build_board({"a": [curve(0.2)], "b": [curve(0.2)]})["a"]
    assert row.to_dict() == {
        "entry": "a",
        "cm": pytest.approx(row.cm, rel=1e-9),
        "low": float(f"{row.low:.10g}"),
        "high": pytest.approx(row.high, rel=1e-9),
        "runs": 1,
        "verdict": "better than the baseline",
        "tied_with": ["b"],
        "seeds_needed": None,
        "extrapolated": False,
    }


def test_larger_of_two_equally_near_rungs_is_compared() -> None:
    night = Night(seed=1).ladder().entry("new", 1.1, 3, at=0.5).entry("new", 1.1, 2, at=2.0)
    assert night.board()["new"].runs == 2


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
