"""Downsampling levels of curve points: stored with the points, and read only to the needed level."""

from __future__ import annotations

import math
import random

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from leaderboard.charts import downsampling
from leaderboard.job_handlers import metrics
from leaderboard.models import Run
from leaderboard.models.curves import MAX_LEVEL
from tests.leaderboard.conftest import build_train_row

Curve = list[downsampling.Known]
CURVES = st.lists(
    st.tuples(st.integers(1, 9), st.floats(0, 9), st.one_of(st.none(), st.floats(0, 9))), min_size=1, max_size=200
).map(lambda gaps: build_curve(gaps))


def build_curve(gaps: list[tuple[int, float, float | None]]) -> Curve:
    step, points = 0, []
    for gap, *values in gaps:
        step += gap
        points.append((step, values))
    return points


@given(CURVES, st.integers(10, 100))
def test_level_has_limited_points_with_ends_and_extremes(curve: Curve, count: int) -> None:
    levels = downsampling.compute_levels(curve)

    level = downsampling.level_for(curve[-1][0], count)
    selected = [point for point, point_level in zip(curve, levels, strict=True) if point_level >= level]

    assert len(selected) <= count
    assert build_point_set([curve[0], curve[-1]]) <= build_point_set(selected)
    losses = [values[0] for _, values in selected]
    assert min(losses) == min(values[0] for _, values in curve)
    assert max(losses) == max(values[0] for _, values in curve)


def build_point_set(points: Curve) -> set[tuple[int, tuple[float | None, ...]]]:
    return {(step, tuple(values)) for step, values in points}


def list_stored_levels(run: Run) -> list[tuple[int, int]]:
    return list(run.points.filter(series="train").order_by("step").values_list("step", "level"))


def build_rows(curve: Curve) -> list[dict[str, object]]:
    return [build_train_row(step, values[0], gradient_norm=values[1]) for step, values in curve]


def build_noisy_curve(steps: int) -> Curve:
    noise = random.Random(3)
    return [(step, (3 + noise.gauss(0, 1) ** 2, noise.random())) for step in range(1, steps + 1)]


@pytest.mark.django_db
@pytest.mark.parametrize("batch", [1, 40])
def test_levels_do_not_depend_on_batches_or_interruptions(run: Run, batch: int) -> None:
    curve = build_noisy_curve(120)
    expected = [(step, level) for (step, _), level in zip(curve, downsampling.compute_levels(curve), strict=True)]

    for start in range(0, len(curve), batch):
        metrics.store_metrics(run, build_rows(curve[start : start + batch]))
    metrics.store_metrics(run, build_rows(curve[100:110]))  # repeated rows
    assert list_stored_levels(run) == expected
    metrics.delete_after_step(run, 80)
    assert list_stored_levels(run)[-1] == (80, MAX_LEVEL)
    metrics.store_metrics(run, build_rows(curve[80:]))
    assert list_stored_levels(run) == expected


@pytest.mark.django_db
def test_curve_json_and_csv_of_long_curve_are_downsampled(
    client: Client, run: Run, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    curve = [(step, (3 + math.sin(step), 1.0)) for step in range(1, 2501)]
    curve[1234] = (1235, (99.0, 1.0))
    for start in range(0, 2500, 500):
        metrics.store_metrics(run, build_rows(curve[start : start + 500]))

    with django_assert_max_num_queries(4):
        reply = client.get(f"/api/v1/runs/{run.pk}/curve")
    etag = {"If-None-Match": reply["ETag"]}
    assert client.get(f"/api/v1/runs/{run.pk}/curve", headers=etag).status_code == 304
    assert len(client.get(f"/api/v1/runs/{run.pk}/curve?limit=20").json()["train"]) <= 20
    payload = reply.json()
    lines = client.get(f"/runs/{run.pk}/curve.csv").content.decode().splitlines()[1:]

    assert payload["points"] == {"train": 2500, "dev": 0}
    for steps in ([point["step"] for point in payload["train"]], [int(line.split(",")[1]) for line in lines]):
        assert len(steps) <= 2000
        assert {1, 1235, 2500} <= set(steps)
