"""Live updates of open pages."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, expect

from leaderboard.models import Run
from leaderboard.rankings.standings_store import recompute_standings
from scheduler.models import Event
from tests.support import scene
from tests.support.waits import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

TALL = {"viewport": {"width": 1440, "height": 1400}}


def finish_run(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(
        state=Run.State.FINISHED,
        trust=Run.Trust.SCORED,
        bits_per_byte=1.9876,
        bits_per_byte_stderr=0.006,
        train_flops=3.7e13,
        revision=run.revision + 10_000,
    )
    Event.record("site", run, "It is on the board.")


def test_board_with_new_points_and_a_finished_run_is_redrawn_without_reload(open_page: Callable[..., Page]) -> None:
    train = scene.create_night_board()["train"]
    page = open_page("/?columns=bits,runs")
    page.evaluate("window.sameDocument = true")
    curve, rows = page.locator("#train path.smooth"), page.locator("table.board tbody tr")
    before = curve.get_attribute("d")
    expect(page.locator("#train")).to_contain_text("1 min 16 s")
    expect(rows).to_have_count(3)

    scene.add_curve_points(train, 521, 700)
    expect(page.locator("#train")).to_contain_text("40 s")
    assert curve.get_attribute("d") != before

    finish_run(train)
    expect(rows.first).to_contain_text("2.0282")  # the mean of main's two runs
    expect(rows).to_have_count(3)
    assert page.evaluate("window.sameDocument")


@pytest.mark.stored_standings
def test_board_with_old_standings_shows_recomputed_ones(open_page: Callable[..., Page]) -> None:
    train = scene.create_night_board()["train"]
    recompute_standings(train.track)
    page = open_page("/?columns=bits,runs")
    rows = page.locator("table.board tbody tr")
    expect(rows).to_have_count(3)
    before = page.locator("main").get_attribute("data-revision")

    finish_run(train)
    expect(page.locator("main")).not_to_have_attribute("data-revision", before or "")
    expect(rows.first).not_to_contain_text("2.0282")
    recompute_standings(train.track)

    expect(rows.first).to_contain_text("2.0282")  # without another event


def test_run_page_grows_without_reload_and_keeps_zoom_details_and_focus(open_page: Callable[..., Page]) -> None:
    train = scene.create_night_board()["train"]
    page = open_page(train.get_absolute_url(), **TALL)
    over = page.locator(".plot .u-over")
    expect(over).to_be_visible()
    expect(page.locator("svg.drawing")).to_have_count(0)
    over.hover(position={"x": 200, "y": 100})
    expect(page.locator(".u-legend")).to_contain_text("training loss")
    assert page.locator(".u-legend .u-value").nth(1).inner_text() not in ("", "–", "--")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 60, steps=4)
    page.mouse.up()
    page.mouse.move(0, 0)
    take_picture = "document.querySelector('.plot canvas').toDataURL()"
    before = page.evaluate(take_picture)

    scene.add_curve_points(train, 521, 700)
    expect(page.locator("#head")).to_contain_text("40 s")
    expect(page.locator("#curve")).to_have_attribute("data-points", "700")
    wait_until(lambda: page.evaluate(take_picture) != before)

    page.get_by_text("The numbers behind the curve").click()
    page.get_by_role("link", name="steps").focus()
    Event.record("node:this-machine", train, "A checkpoint was kept at step 600.")
    expect(page.locator(".timeline")).to_contain_text("A checkpoint was kept")
    expect(page.get_by_role("caption")).to_be_visible()
    expect(page.get_by_role("link", name="steps")).to_be_focused()


def test_run_page_opened_before_first_step_draws_curve_panels_and_dev_loss(open_page: Callable[..., Page]) -> None:
    run = scene.create_training_run(scene.create_entry(scene.create_track(), "main"), 0)
    page = open_page(run.get_absolute_url())
    legend = page.locator("#curve .u-legend")
    expect(page.locator("#curve")).to_contain_text("The curve appears here")

    scene.add_curve_points(run, 1, 100)
    Event.record("node:this-machine", run, "A checkpoint was saved at step 50.")
    expect(page.locator(".plot canvas")).to_be_visible()
    expect(page.locator(".small-plot canvas")).to_have_count(4)
    expect(legend).to_contain_text("smoothed")
    expect(legend).not_to_contain_text("dev loss")

    scene.add_curve_points(run, 101, 200)
    expect(legend).to_contain_text("dev loss")


def test_finished_run_page_requests_live_json_once_and_shows_local_time(open_page: Callable[..., Page]) -> None:
    best = scene.create_night_board()["best"]
    asked = []
    page = open_page("/nodes/", locale="en-US")
    page.on("request", lambda request: asked.append(request.url) if "live.json" in request.url else None)
    with page.expect_request(f"**{best.get_absolute_url()}live.json*"):
        page.goto(best.get_absolute_url())
    page.wait_for_timeout(5000)
    assert len([url for url in asked if f"/runs/{best.pk}/" in url]) == 1

    time = page.locator(".route time").first
    at = datetime.fromisoformat(time.get_attribute("datetime") or "").astimezone(ZoneInfo("Europe/Berlin"))
    expect(time).to_have_text(re.compile(f"{at:%H:%M}$"))
    assert (time.get_attribute("title") or "").endswith(" UTC")
    expect(page.locator(".clock")).to_have_text(re.compile(r"^\d\d:\d\d UTC$"))

    page.get_by_role("link", name="time", exact=True).click()
    expect(page.locator(".u-legend")).to_contain_text("training time")
    assert page.url.endswith("?x=seconds")
