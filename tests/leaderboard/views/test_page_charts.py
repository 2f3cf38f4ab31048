"""Curves, axes and numbers as they are drawn on pages."""

from __future__ import annotations

import pytest

from leaderboard import formatting
from leaderboard.charts import curve_svg, panels
from leaderboard.models import Run
from tests.support import scene


def test_thinned_values_keep_ends_and_extremes() -> None:
    values = [5.0] * 10_000
    values[4321], values[8765] = 99.0, -99.0

    indices = curve_svg.thin_values(values, 100)

    assert len(indices) <= 100
    assert {0, 4321, 8765, 9999} <= set(indices)
    assert indices == sorted(indices)


def test_smoothed_values_follow_steep_start_and_reduce_noise() -> None:
    steep = [9.0, 7.0, 5.0, *([4.0, 4.4] * 200)]

    smoothed = curve_svg.smooth_values(steep)

    assert smoothed[0] == 9.0
    assert smoothed[3] < 5.5
    assert max(smoothed[-50:]) - min(smoothed[-50:]) < 0.1


@pytest.mark.parametrize(("low", "high"), [(3.1, 9.0), (2.04, 2.31), (0.0, 1e-3), (-2.0, 400.0)])
def test_axis_has_two_to_six_round_ticks(low: float, high: float) -> None:
    ticks = curve_svg.y_steps(low, high)

    assert 2 <= len(ticks) <= 6
    assert all(low <= tick <= high for tick, _ in ticks)
    assert len({label for _, label in ticks}) == len(ticks)


@pytest.mark.django_db
def test_chart_of_unfinished_run_leaves_room_for_rest() -> None:
    run = scene.create_training_run(scene.create_entry(scene.create_track(), "main"), 450)

    unfinished_chart = panels.draw_run(run)

    assert unfinished_chart is not None
    assert unfinished_chart.lines[0].last is not None
    assert unfinished_chart.lines[0].last.x == pytest.approx(50, abs=1)
    run.state = Run.State.FAILED
    finished_chart = panels.draw_run(run)
    assert finished_chart is not None
    assert finished_chart.lines[0].last is None
    assert finished_chart.lines[0].smooth[0][-1] == 100


@pytest.mark.parametrize(
    ("formatted", "expected"),
    [
        (formatting.compact(3_410_432), "3.41 M"),
        (formatting.compact(999_999), "1 M"),
        (formatting.compact(520), "520"),
        (formatting.power(3.7e13), "3.7 × 10¹³"),
        (formatting.binary(16 * 2**30), "16 GiB"),
        (formatting.duration(43), "43 s"),
        (formatting.duration(125), "2 min 05 s"),
        (formatting.duration(11_520), "3 h 12 min"),
        (formatting.duration(190_000), "2 d 04 h"),
        (formatting.budget("180s"), "3 min"),
        (formatting.budget("3B-tokens"), "3 B tokens"),
        (formatting.budget("500steps"), "500 steps"),
        (formatting.budget("300000steps"), "300,000 steps"),
        (formatting.budget("1e19flops"), "1.0 × 10¹⁹ FLOPs"),
        (formatting.budget("1.25e12flops"), "1.25 × 10¹² FLOPs"),
        (formatting.share(0.125), "1/8 of the budget"),
        (formatting.share(1), "the whole budget"),
        (formatting.share(2), "2 × the budget"),
        (formatting.share(0.3), "0.3 of the budget"),
        (formatting.budget("unknown"), "unknown"),
    ],
)
def test_formatted_number_is_readable(formatted: str, expected: str) -> None:
    assert formatted.replace(formatting.SPACE, " ") == expected
