"""A curve is thinned when its points come in: whatever reads it later reads no more than it shows."""

from __future__ import annotations

import math
import random

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from leaderboard.charts import curve_svg, downsampling
from leaderboard.job_handlers import metrics
from leaderboard.models import Run
from leaderboard.models.curves import MAX_LEVEL
from tests.leaderboard.conftest import train_row
from tests.support import scene

Curve = list[downsampling.Known]
CURVES = st.lists(
    st.tuples(st.integers(1, 9), st.floats(0, 9), st.one_of(st.none(), st.floats(0, 9))), min_size=1, max_size=200
).map(lambda gaps: by_steps(gaps))


def by_steps(gaps: list[tuple[int, float, float | None]]) -> Curve:
    step, points = 0, []
    for gap, *values in gaps:
        step += gap
        points.append((step, values))
    return points


@given(CURVES, st.integers(10, 100))
def test_a_level_holds_at_most_so_many_points_with_the_ends_and_extremes(curve: Curve, count: int) -> None:
    found = downsampling.compute_levels(curve)

    level = downsampling.level_for(curve[-1][0], count)
    kept = [point for point, own in zip(curve, found, strict=True) if own >= level]

    assert len(kept) <= count
    assert set_of([curve[0], curve[-1]]) <= set_of(kept)
    losses = [values[0] for _, values in kept]
    assert min(losses) == min(values[0] for _, values in curve)
    assert max(losses) == max(values[0] for _, values in curve)


def set_of(points: Curve) -> set[tuple[int, tuple[float | None, ...]]]:
    return {(step, tuple(values)) for step, values in points}


def stored(run: Run) -> list[tuple[int, int]]:
    return list(run.points.filter(series="train").order_by("step").values_list("step", "level"))


def rows_of(curve: Curve) -> list[dict[str, object]]:
    return [train_row(step, values[0], gradient_norm=values[1]) for step, values in curve]


def noisy(steps: int) -> Curve:
    noise = random.Random(3)
    return [(step, (3 + noise.gauss(0, 1) ** 2, noise.random())) for step in range(1, steps + 1)]


@pytest.mark.django_db
@pytest.mark.parametrize("batch", [1, 7, 300])
def test_levels_are_the_same_however_the_points_come_in(run: Run, batch: int) -> None:
    curve = noisy(300)

    for start in range(0, len(curve), batch):
        metrics.store_metrics(run, rows_of(curve[start : start + batch]))
    metrics.store_metrics(run, rows_of(curve[250:270]))  # said once more

    assert stored(run) == [
        (step, level) for (step, _), level in zip(curve, downsampling.compute_levels(curve), strict=True)
    ]


@pytest.mark.django_db
def test_a_curve_that_was_cut_goes_on_as_if_it_had_never_been_longer(run: Run) -> None:
    curve = noisy(300)
    metrics.store_metrics(run, rows_of(curve))

    metrics.delete_after_step(run, 200)
    assert stored(run)[-1] == (200, MAX_LEVEL)
    metrics.store_metrics(run, rows_of(curve[200:260]))

    whole = downsampling.compute_levels(curve[:260])
    assert stored(run) == [(step, level) for (step, _), level in zip(curve, whole, strict=False)]


@pytest.mark.django_db
def test_a_long_curve_is_read_as_coarse_as_it_is_shown(
    run: Run, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    curve = [(step, (3 + math.sin(step), 1.0)) for step in range(1, 3001)]
    curve[1234] = (1235, (99.0, 1.0))
    curve[2345] = (2346, (3.0, 50.0))
    for start in range(0, 3000, 500):
        metrics.store_metrics(run, rows_of(curve[start : start + 500]))
    run.refresh_from_db()

    with django_assert_num_queries(1):
        train, _ = curve_svg.load_points([run], 200)[run.pk]

    assert len(train) <= 200
    assert {1, 1235, 2346, 3000} <= {point.step for point in train}


@pytest.mark.django_db
def test_ten_curves_are_read_in_one_query(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    entry = scene.entry(scene.track(), "main")
    runs = [scene.running(entry, 20, seed=seed) for seed in range(10)]

    with django_assert_num_queries(1):
        curves = curve_svg.load_curves(runs)

    assert {len(curve.train) for curve in curves.values()} == {20}


@pytest.mark.django_db
def test_the_api_and_the_file_read_no_more_of_a_long_curve_than_they_give(
    client: Client, run: Run, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    curve = [(step, (3 + math.sin(step), 1.0)) for step in range(1, 6001)]
    curve[1234] = (1235, (99.0, 1.0))
    for start in range(0, 6000, 1000):
        metrics.store_metrics(run, rows_of(curve[start : start + 1000]))

    with django_assert_max_num_queries(4):
        told = client.get(f"/api/v1/runs/{run.pk}/curve").json()
    lines = client.get(f"/runs/{run.pk}/curve.csv").content.decode().splitlines()[1:]

    assert told["points"] == {"train": 6000, "dev": 0}
    for steps in ([point["step"] for point in told["train"]], [int(line.split(",")[1]) for line in lines]):
        assert len(steps) <= 2000
        assert {1, 1235, 6000} <= set(steps)
