"""Long curves are thinned when their points arrive; ends and extremes stay."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard.charts import curve_svg
from leaderboard.job_handlers import metrics
from leaderboard.models import Run
from tests.leaderboard.conftest import build_train_row

pytestmark = pytest.mark.django_db


def store_curve(run: Run, steps: int) -> None:
    rows = [build_train_row(step, 3 + math.sin(step), gradient_norm=1.0) for step in range(1, steps + 1)]
    rows[1234] = build_train_row(1235, 99.0, gradient_norm=1.0)
    rows[777] = build_train_row(778, 3.0, gradient_norm=50.0)
    for start in range(0, steps, 500):
        metrics.store_metrics(run, rows[start : start + 500])


def test_stored_curve_is_bounded_and_even_with_ends_and_extremes(run: Run) -> None:
    store_curve(run, 9000)
    steps = list(run.points.filter(series="train").order_by("step").values_list("step", flat=True))
    assert len(steps) <= metrics.MAX_POINTS
    assert {1, 778, 1235, 9000} <= set(steps)
    assert max(after - before for before, after in pairwise(steps)) <= 2 * 9000 / metrics.BUCKETS


def test_page_of_many_long_curves_reads_an_even_part_of_each(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    store_curve(run, 1900)
    assert len(curve_svg.load_points([run])[run.pk][0]) == 1900
    monkeypatch.setattr(curve_svg, "MAX_PAGE_POINTS", 300)
    train, _ = curve_svg.load_points([run] * 3)[run.pk]
    assert len(train) == 100
    assert {after.step - before.step for before, after in pairwise(train)} == {19}
    assert train[-1].step == 1900


def test_curve_json_and_csv_of_long_curve_are_downsampled(
    client: Client, run: Run, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    store_curve(run, 2500)
    with django_assert_max_num_queries(4):
        reply = client.get(f"/api/v1/runs/{run.pk}/curve")
    etag = {"If-None-Match": reply["ETag"]}
    assert client.get(f"/api/v1/runs/{run.pk}/curve", headers=etag).status_code == 304
    assert len(client.get(f"/api/v1/runs/{run.pk}/curve?limit=20").json()["train"]) <= 20
    payload = reply.json()
    lines = client.get(f"/runs/{run.pk}/curve.csv").content.decode().splitlines()[1:]

    assert payload["points"] == {"train": len(payload["train"]), "dev": 0}
    for steps in ([point["step"] for point in payload["train"]], [int(line.split(",")[1]) for line in lines]):
        assert len(steps) <= 2000
        assert {1, 1235, 2500} <= set(steps)
