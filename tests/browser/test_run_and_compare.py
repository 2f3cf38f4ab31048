"""Overlaid curves, log search and comparisons of runs in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from leaderboard.models import Run
from scheduler.models import Event, LogChunk
from tests.support import boards, scene

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

WIDE = {"viewport": {"width": 1440, "height": 1400}}


@pytest.fixture
def better_and_level() -> tuple[Run, Run]:
    """Two runs with curves, on a board with a full ladder."""
    _, entries = boards.create_board()
    found = entries["Better"].runs.order_by("pk")[0], entries["Level"].runs.get()
    for run in (*found, entries["baseline"].runs.get(budget="1e13flops", seed=1)):
        scene.add_curve_points(run, 1, 300)
    return found


def test_overlaid_run_is_kept_in_the_url_unless_unchecked(
    open_page: Callable[..., Page], better_and_level: tuple[Run, Run]
) -> None:
    better, level = better_and_level
    page = open_page(level.get_absolute_url(), **WIDE)
    legend = page.locator("#curve .u-legend")
    expect(legend).to_contain_text("smoothed")
    expect(page.locator(".small-plot canvas")).to_have_count(4)
    held: list[Route] = []
    page.route("**/compare/curves.json*", lambda route: held.append(route), times=1)
    with page.expect_request("**/compare/curves.json*"):
        page.get_by_label("best so far").check()
    page.get_by_label("best so far").uncheck()  # while its curve is requested
    with page.expect_response("**/compare/curves.json*") as response:
        held[0].continue_()
    response.value.finished()
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 100))")
    expect(legend).not_to_contain_text("best so far")

    page.get_by_label("best so far").check()
    page.get_by_label("Smoothing").select_option("strong")
    page.get_by_role("link", name="FLOPs", exact=True).click()

    expect(legend).to_contain_text("best so far")
    expect(page).to_have_url(re.compile(rf"\?x=flops&smooth=strong&over={better.pk}$"))
    page.reload()
    expect(legend).to_contain_text("best so far")
    expect(page.get_by_label("best so far")).to_be_checked()


def test_run_log_search_while_typing_marks_matches(open_page: Callable[..., Page]) -> None:
    train = scene.create_night_board()["train"]
    lease = train.job.leases.get()
    LogChunk.objects.create(lease=lease, offset=5000, text="".join(f"line {i}\n" for i in range(500)))
    page = open_page(train.get_absolute_url(), **WIDE)
    expect(page.locator("#log")).to_contain_text("line 499")

    page.get_by_label("Search in the log").press_sequentially("LINE 12")

    expect(page.locator("#log mark")).to_have_count(11)
    expect(page).to_have_url(re.compile(r"find=LINE\+12$"))
    LogChunk.objects.create(lease=lease, offset=9000, text="line 129 again\n")
    scene.add_curve_points(train, 521, 522)
    expect(page.locator("#log mark")).to_have_count(12)
    page.get_by_label("Search in the log").fill("")
    expect(page.locator("#log")).to_contain_text("line 499")


def test_run_log_search_during_page_update_keeps_matches(open_page: Callable[..., Page]) -> None:
    train = scene.create_night_board()["train"]
    LogChunk.objects.create(lease=train.job.leases.get(), offset=5000, text="needle\n")
    page = open_page(train.get_absolute_url(), **WIDE)
    expect(page.locator("#curve")).to_have_attribute("data-points", "520")
    held: list[Route] = []
    page.route(f"**{train.get_absolute_url()}", lambda route: held.append(route), times=1)
    with page.expect_request(f"**{train.get_absolute_url()}"):
        Event.record("site", train, "The site announces something.")

    page.get_by_label("Search in the log").fill("needle")
    expect(page.locator("#log mark")).to_have_count(1)
    with page.expect_response("**/live.json*") as asked:
        held[0].continue_()

    assert asked.value.url.endswith("?find=needle")
    expect(page.locator("#log mark")).to_have_count(1)


def test_runs_selected_on_the_board_are_compared_also_without_script(
    open_page: Callable[..., Page], better_and_level: tuple[Run, Run]
) -> None:
    page = open_page("/", **WIDE)
    bar = page.get_by_role("button", name="Compare the chosen runs")
    expect(bar).to_be_hidden()
    boxes = page.locator("table.board .pick")
    for at in (0, 1):
        boxes.nth(at).focus()
        page.keyboard.press("Space")

    bar.click()

    expect(page.get_by_role("heading", level=1)).to_have_text("2 runs, side by side")
    expect(page).to_have_url(re.compile(r"/compare/\?runs=\d+,\d+$"))
    expect(page.locator(".verdicts")).to_contain_text("is ahead of")
    page.get_by_role("link", name=re.compile("Take run")).first.click()
    expect(page.locator(".chosen tbody tr")).to_have_count(1)

    better, level = better_and_level
    page = open_page(f"/compare/?runs={better.pk},{level.pk}", java_script_enabled=False, **WIDE)
    expect(page.locator("#curve path.smooth")).to_have_count(2)

    page.get_by_role("link", name="FLOPs", exact=True).click()

    expect(page).to_have_url(re.compile(rf"runs={better.pk}(,|%2C){level.pk}&.*x=flops"))
    expect(page.locator("#curve path.smooth")).to_have_count(2)
    page.get_by_text(f"The numbers of run {better.pk}").click()
    expect(page.get_by_role("columnheader", name="Learning rate").first).to_be_visible()
