"""A run's curve: thinned when its points arrive, drawn in panels, with reference runs."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard.charts import panels
from leaderboard.job_handlers import metrics
from leaderboard.models import Run
from leaderboard.rankings.standings_store import recompute_standings
from tests.leaderboard.conftest import build_train_row
from tests.leaderboard.views.test_page_board import extract_text
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    training_run = scene.create_run(scene.create_entry(scene.create_track(), "main"), state=Run.State.TRAINING)
    rows = [
        build_train_row(step, 3 + 6 / step, memory_bytes=2**30, mfu=0.4 if step > 10 else None, mfu_windowed=0.3)
        for step in range(1, 101)
    ]
    metrics.store_metrics(training_run, rows, temperature=61.5)
    training_run.refresh_from_db()
    return training_run


@pytest.mark.stored_standings
def test_overlaid_run_is_drawn_without_script_in_few_queries(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    track, entries = boards.create_board()
    level_run, best_run = entries["Level"].runs.get(), entries["Better"].runs.order_by("pk")[0]
    for run in (level_run, best_run):
        scene.add_curve_points(run, 1, 300)
    recompute_standings(track)

    with django_assert_max_num_queries(11):
        page = client.get(f"{level_run.get_absolute_url()}?over={best_run.pk}&x=flops").content.decode()

    assert 'class="smooth is-record"' in page
    assert re.search(rf'value="{best_run.pk}" checked', page)
    assert "best so far" in extract_text(page.encode())


@pytest.mark.parametrize(("loss", "fraction"), [(1e17, 0.5), (1e40, 0.5), (3.0, 1e-310)])
def test_run_with_one_extreme_point_is_drawn(client: Client, loss: float, fraction: float) -> None:
    training_run = scene.create_run(scene.create_entry(scene.create_track(), "main"), state=Run.State.TRAINING)
    metrics.store_metrics(training_run, [{**build_train_row(1, loss), "fraction": fraction}])
    training_run.refresh_from_db()
    assert training_run.fraction == (fraction if fraction > 1e-9 else 0)
    assert panels.draw_run(training_run) is not None
    for address in ("/", training_run.get_absolute_url(), f"/runs/{training_run.pk}/curve.png"):
        assert client.get(address).status_code == 200, address


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
