"""Curves as pictures."""

from __future__ import annotations

import pytest

from leaderboard import formatting
from leaderboard.charts import curve_svg
from leaderboard.models import Run
from tests.support import scene


def test_thinning_keeps_the_ends_and_the_extremes() -> None:
    values = [5.0] * 10_000
    values[4321], values[8765] = 99.0, -99.0

    kept = curve_svg.thin_values(values, 100)

    assert len(kept) <= 100
    assert {0, 4321, 8765, 9999} <= set(kept)
    assert kept == sorted(kept)


def test_a_short_series_is_not_thinned() -> None:
    assert curve_svg.thin_values([3.0, 1.0, 2.0], 100) == [0, 1, 2]


def test_smoothing_follows_a_steep_start_and_calms_the_rest() -> None:
    steep = [9.0, 7.0, 5.0, *([4.0, 4.4] * 200)]

    calm = curve_svg.smooth_values(steep)

    assert calm[0] == 9.0
    assert calm[3] < 5.5
    assert max(calm[-50:]) - min(calm[-50:]) < 0.1


@pytest.mark.parametrize(("low", "high"), [(3.1, 9.0), (2.04, 2.31), (0.0, 1e-3), (-2.0, 400.0)])
def test_an_axis_has_a_handful_of_round_ticks(low: float, high: float) -> None:
    ticks = curve_svg.y_steps(low, high)

    assert 2 <= len(ticks) <= 6
    assert all(low <= tick <= high for tick, _ in ticks)
    assert len({label for _, label in ticks}) == len(ticks)


def test_time_ticks_fall_on_minutes() -> None:
    assert curve_svg.x_steps("seconds", 180.0) == [0, 30, 60, 90, 120, 150, 180]


def test_whiskers_share_one_scale() -> None:
    first, second = curve_svg.build_whiskers([(2.0, 0.01), (2.2, 0.05)])

    assert 0 < first.low < first.dot < first.high < second.dot < second.high < 100
    assert second.width == pytest.approx(5 * first.width, rel=0.01)


@pytest.mark.django_db
def test_an_unfinished_curve_leaves_room_for_the_rest() -> None:
    train = scene.running(scene.entry(scene.track(), "main"), 450)

    half = curve_svg.draw_curve(train, curve_svg.load_curve(train))

    assert half is not None
    assert half.last is not None
    assert half.last.x == pytest.approx(50, abs=1)
    train.state = Run.State.FAILED
    whole = curve_svg.draw_curve(train, curve_svg.load_curve(train))
    assert whole is not None
    assert whole.last is not None
    assert whole.last.x == 100


@pytest.mark.django_db
def test_nothing_is_drawn_before_the_first_step() -> None:
    train = scene.running(scene.entry(scene.track(), "main"), 0)

    assert curve_svg.draw_curve(train, curve_svg.load_curve(train)) is None


@pytest.mark.parametrize(
    ("written", "said"),
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
        (formatting.budget("whatever"), "whatever"),
    ],
)
def test_numbers_are_written_as_people_read_them(written: str, said: str) -> None:
    assert written.replace(formatting.SPACE, " ") == said
