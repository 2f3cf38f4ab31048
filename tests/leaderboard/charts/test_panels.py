"""A run's metrics in several small pictures, and other runs laid over them."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from django.http import QueryDict
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard.charts import curve_svg, panels
from leaderboard.charts.panels import Shown, View
from leaderboard.job_handlers import metrics
from leaderboard.models import CurvePoint, Run
from leaderboard.rankings.standings_store import load_standings, recompute_standings
from leaderboard.reference_runs import find_reference_runs
from scheduler.job_kinds import get_job_kind
from scheduler.models import Node
from tests.leaderboard.conftest import lease, train_row
from tests.leaderboard.views.test_page_board import words
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


def drawn(run: Run, asked: str = "") -> dict[str, panels.Panel]:
    shown = [Shown(run, curve_svg.load_curve(run), "this", "ink", is_alone=True)]
    return {panel.metric.name: panel for panel in panels.build_panels(shown, View.from_query(QueryDict(asked)))}


@pytest.fixture
def run() -> Run:
    made = scene.run(scene.entry(scene.track(), "main"), state=Run.State.TRAINING)
    rows = [
        {**train_row(step, 3 + 6 / step), "memory_bytes": 2**30, "mfu": 0.4 if step > 10 else None}
        for step in range(1, 101)
    ]
    metrics.store_metrics(made, rows, temperature=61.5)
    made.refresh_from_db()
    return made


def test_there_is_a_panel_where_there_are_values(run: Run) -> None:
    assert list(drawn(run)) == [
        "loss", "learning_rate", "gradient_norm", "mfu", "memory_bytes", "temperature_celsius",
    ]  # fmt: skip
    assert drawn(run)["memory_bytes"].latest == "1"
    assert drawn(run)["mfu"].latest == "40"
    assert drawn(run)["temperature_celsius"].latest == "61.5"


def test_nothing_is_drawn_before_the_first_step() -> None:
    assert drawn(scene.run(scene.entry(scene.track(), "main"))) == {}


def test_the_steep_start_goes_off_the_top_but_not_on_a_logarithmic_axis(run: Run) -> None:
    def tops(asked: str) -> float:
        return max(float(tick.label) for tick in drawn(run, asked)["loss"].y_ticks)

    assert tops("") < 5 < 8 < tops("log=y") + 3
    first = re.match(r"m\S+ (\S+) ", drawn(run)["loss"].lines[0].raw)
    assert first
    assert float(first[1]) < 0


@pytest.mark.parametrize("x", curve_svg.ABSCISSAE)
@pytest.mark.parametrize("log", ["", "&log=x", "&log=y", "&log=x&log=y"])
@pytest.mark.parametrize("smooth", panels.SMOOTHINGS)
def test_every_choice_has_a_picture_inside_its_frame(run: Run, x: str, log: str, smooth: str) -> None:
    found = drawn(run, f"x={x}{log}&smooth={smooth}")

    assert all(0 <= tick.at <= 100 for panel in found.values() for tick in [*panel.x_ticks, *panel.y_ticks])
    assert all(len(panel.x_ticks) >= 2 and len(panel.y_ticks) >= 2 for panel in found.values())


def test_an_address_that_nobody_understands_is_left_as_it_is() -> None:
    assert View.from_query(QueryDict("x=fish&smooth=much&log=z")) == View()


def test_the_table_behind_has_the_last_step_and_every_metric(run: Run) -> None:
    table = panels.build_points_table(curve_svg.load_curve(run))

    assert len(table.rows) == panels.TABLE_ROWS
    assert (table.rows[0][0], table.rows[-1][0]) == ("1", "100")
    assert "GPU temperature, °C" in table.heads
    assert table.rows[0][table.heads.index("MFU, % of the peak")] == "–"


def test_the_temperature_is_the_agents_word_and_not_the_training_processs(run: Run, node: Node) -> None:
    job = scene.job(run)
    Run.objects.filter(pk=run.pk).update(job=job)
    Node.objects.filter(pk=node.pk).update(health={"temperature_celsius": 71, "throttled": False})
    lease(job, node)

    get_job_kind(job).handle_metrics(job, [train_row(101, temperature_celsius=20)])

    assert CurvePoint.objects.get(run=run, step=101).temperature_celsius == 71


def test_the_baseline_and_the_leader_of_the_same_budget_are_offered(client: Client) -> None:
    track, entries = boards.board()
    level, better = entries["Level"].runs.get(), entries["Better"].runs.order_by("pk")[0]
    rung = entries["baseline"].runs.get(budget="2.5e12flops", seed=2)

    labels = {other.label: other.run for other in find_reference_runs(level, load_standings(track))}

    assert labels["baseline"] == entries["baseline"].runs.get(budget=track.budget, seed=1).pk
    assert labels["best so far"] == better.pk
    assert [other.label for other in find_reference_runs(better, load_standings(track))] == ["baseline"]
    assert find_reference_runs(rung, load_standings(track)) == []


@pytest.mark.stored_standings
def test_what_lies_over_it_is_drawn_without_script_in_few_queries(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    track, entries = boards.board()
    level, best = entries["Level"].runs.get(), entries["Better"].runs.order_by("pk")[0]
    for run in (level, best):
        scene.points(run, 1, 300)
    recompute_standings(track)

    with django_assert_max_num_queries(11):
        page = client.get(f"{level.get_absolute_url()}?over={best.pk}&x=flops&log=x").content.decode()

    assert 'class="smooth is-record"' in page
    assert re.search(rf'value="{best.pk}" checked', page)
    assert "best so far" in words(page.encode())


@pytest.mark.parametrize("over", ["999999", "fish", "-1", "1,2,3,4,5,6,7,8,9,10,11,12,13"])
def test_what_is_not_there_cannot_lie_over_it(client: Client, run: Run, over: str) -> None:
    assert client.get(f"{run.get_absolute_url()}?over={over}").status_code == 200


def test_columns_for_scripts_are_of_one_length_and_without_what_is_missing(run: Run) -> None:
    columns: dict[str, Any] = panels.script_columns(run, curve_svg.load_curve(run))

    assert {len(column) for column in columns["train"].values()} == {100}
    assert "tokens_per_second" not in columns["train"]
    assert columns["train"]["mfu"][:11] == [None] * 10 + [40.0]
    assert set(columns["end"]) == set(curve_svg.ABSCISSAE)


def test_of_many_checkpoints_some_samples_are_shown_the_last_among_them(client: Client, run: Run) -> None:
    rows = [{"kind": "sample", "step": step, "prompt": "The", "text": f"text {step}."} for step in range(1, 101)]
    metrics.store_metrics(run, rows)

    page = words(client.get(run.get_absolute_url()).content)

    assert page.count("text ") <= 12
    assert "text 100." in page
    assert "text 1." in page


def test_columns_for_scripts_have_five_digits_and_gaps() -> None:
    values = [0.0, 1.0, -2.5, 3.14159265, 1.23456789e13, 9.99999e-4, 7.3e-9, math.nan, math.inf]
    assert panels.round_column(np.array(values)) == [*map(panels.round_value, values[:-2]), None, None]
