"""Runs beside each other."""

from __future__ import annotations

import json
import re

import pytest
from django.core.cache import cache
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard import comparison
from leaderboard.models import Entry, Run, Score, Track
from leaderboard.rankings.standings_store import load_standings
from tests.leaderboard.views.test_page_board import words
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def board() -> tuple[Track, dict[str, Entry]]:
    return boards.board()


def runs_of(entries: dict[str, Entry], *titles: str) -> list[Run]:
    return [entries[title].runs.filter(budget="1e13flops").order_by("pk")[0] for title in titles]


def address(runs: list[Run]) -> str:
    return f"/compare/?runs={','.join(str(run.pk) for run in runs)}"


def test_the_verdict_comes_first_with_what_the_others_would_need(
    client: Client, board: tuple[Track, dict[str, Entry]]
) -> None:
    runs = runs_of(board[1], "Level", "Worse", "Better", "baseline")

    page = words(client.get(address(runs)).content)

    assert re.search(r"Better is ahead of Level \(which needs \d+(\.\d)? % more compute to get as far\), main", page)
    assert "Level is ahead of Worse" in page
    assert "cannot be distinguished from main, 3 March" in page


def test_pairs_say_what_the_board_says(board: tuple[Track, dict[str, Entry]]) -> None:
    track, entries = board
    table = load_standings(track)
    found = comparison.compare_pairs(runs_of(entries, "Better", "Level", "Worse", "baseline"))
    assert found
    place = {entry: i for i, (entry, _) in enumerate(found.entries)}
    for entry in (entries[title].pk for title in ("Better", "Level", "Worse")):
        row = table.get_row(entry)
        assert row
        tied = set(row.ties) & place.keys()
        cells = {other: found.rows[place[entry]][place[other]] for other in place if other != entry}
        assert {other for other, cell in cells.items() if cell and cell.verdict == "tied"} == tied
        against = cells[entries["baseline"].pk]
        assert against
        assert against.ratio
        assert (against.ratio.cm, against.ratio.low) == (row.multiplier, row.multiplier_low)


def test_only_settings_that_differ_are_shown(client: Client) -> None:
    track = scene.track()
    first = scene.run(scene.entry(track, "Plain"), config={"model": {"depth": 4, "width": 256}})
    second = scene.run(scene.entry(track, "Deep", sha="a" * 40), config={"model": {"depth": 6, "width": 256}})

    differ, alike = comparison.compare_settings([first, second])

    assert [(row.name, row.values) for row in differ] == [
        ("commit", (scene.SHA[:10], "a" * 10)),
        ("model.depth", ("4", "6")),
    ]
    assert "model.width" in {row.name for row in alike}


def test_groups_of_parameters_are_told_apart_by_their_names() -> None:
    groups = [{"name": "matrices", "optimizer": "muon"}, {"name": "head", "optimizer": "adamw"}]

    assert dict(comparison.flatten_table({"recipe": {"groups": groups}})) == {
        "recipe.groups.matrices.optimizer": "muon",
        "recipe.groups.head.optimizer": "adamw",
    }


def test_what_forms_send_is_led_to_one_address(client: Client) -> None:
    answer = client.get("/compare/?runs=3&runs=1&runs=3&x=flops")

    assert (answer.status_code, answer["Location"]) == (302, "/compare/?runs=3,1&x=flops")


@pytest.mark.parametrize("asked", ["", "?runs=", "?runs=abc,-1", "?runs=999999", "?runs=99999999999999999999999"])
def test_whatever_is_asked_there_is_a_page(client: Client, asked: str) -> None:
    answer = client.get(f"/compare/{asked}", follow=True)

    assert answer.status_code == 200
    assert "Compare runs" in words(answer.content)


def test_ten_runs_take_few_queries_and_few_bytes(
    client: Client, board: tuple[Track, dict[str, Entry]], django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    track, entries = board
    for seed in range(200, 206):
        boards.judged(entries["Level"], seed=seed)
    runs = list(Run.objects.filter(track=track, budget=track.budget)[:10])
    for run in runs[:3]:
        scene.points(run, 1, 600)
    cache.clear()

    with django_assert_max_num_queries(10):
        page = client.get(address(runs))
    with django_assert_max_num_queries(10):
        curves = client.get(address(runs).replace("/?", "/curves.json?"))

    assert page.content.count(b"Take run ") == 10
    assert len(curves.json()["curves"]) == 10
    assert len(page.content) < 300_000


def test_an_eleventh_run_is_left_out(client: Client, board: tuple[Track, dict[str, Entry]]) -> None:
    for seed in range(200, 206):
        boards.judged(board[1]["Level"], seed=seed)
    runs = list(Run.objects.filter(budget=board[0].budget)[:11])
    assert len(runs) == 11
    assert client.get(address(runs), follow=True).content.count(b"Take run ") == 10


def test_the_curves_are_sent_again_only_when_one_has_changed(client: Client) -> None:
    run = scene.night()["train"]
    first = client.get(f"/compare/curves.json?runs={run.pk}")
    assert first.json()["live"] == [run.pk]
    columns = first.json()["curves"][str(run.pk)]["train"]
    assert len({len(column) for column in columns.values()}) == 1
    assert "loss" not in columns
    again = {"If-None-Match": first["ETag"]}
    assert client.get(f"/compare/curves.json?runs={run.pk}", headers=again).status_code == 304
    Run.objects.filter(pk=run.pk).update(revision=run.revision + 1)
    assert client.get(f"/compare/curves.json?runs={run.pk}", headers=again).status_code == 200


def test_the_markdown_is_a_table_that_titles_cannot_break(client: Client) -> None:
    track = scene.track()
    first = scene.run(scene.entry(track, "a | b [x](javascript:1) @everyone <b>"), bits_per_byte=2.0)
    second = scene.run(scene.entry(track, "Plain", sha="a" * 40))
    Score.objects.create(run=first, name="blimp/acc", value=0.6, stderr=0.01)

    text = client.get(address([first, second])).context["markdown"]

    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}
    assert "| blimp/acc | 0.6000 ± 0.0100 |  |" in rows
    assert "@everyone" not in text
    assert f"/compare/?runs={first.pk},{second.pk}" in text


def test_runs_of_another_track_are_drawn_and_not_compared(
    client: Client, board: tuple[Track, dict[str, Entry]]
) -> None:
    other = Track.objects.create(
        slug="other", name="Other", season=board[0].season, budget="60s", expected_seconds=60.0
    )
    far = scene.run(scene.entry(other, "Far"), state=Run.State.FINISHED, bits_per_byte=1.0)
    runs = [*runs_of(board[1], "Better", "Level"), far]

    page = words(client.get(address(runs)).content)

    assert "Better is ahead of Level" in page
    assert "Runs of other tracks have other budgets" in page
    assert "Far is" not in page


def test_one_run_is_offered_others(client: Client, board: tuple[Track, dict[str, Entry]]) -> None:
    (run,) = runs_of(board[1], "Level")

    page = words(client.get(address([run])).content)

    assert "+ main, 3 March baseline" in page
    assert "+ Better" in page


def test_compare_curves_with_infinite_value_are_plain_json(client: Client) -> None:
    run = scene.night()["train"]
    last = run.points.filter(series="train").order_by("step").last()
    assert last is not None
    run.points.filter(pk=last.pk).update(gradient_norm=float("inf"))

    answer = client.get(f"/compare/curves.json?runs={run.pk}")

    found = json.loads(answer.content, parse_constant=pytest.fail)
    train = found["curves"][str(run.pk)]["train"]
    assert answer.status_code == 200
    assert train["step"][-1] == last.step
    assert train["gradient_norm"][-1] is None
    assert len(train["gradient_norm"]) == len(train["step"]) == len(train["smooth"]) > 100
    assert (found["live"], found["wait"]) == ([run.pk], 1.5)
