"""Answers of the API as CSV: `?format=csv`."""

from __future__ import annotations

import csv
import io

import pytest
from django.test import Client

from leaderboard.api.table import write_csv
from leaderboard.models import Run, Score
from tests.support import boards

pytestmark = pytest.mark.django_db
BOARD = "/api/v1/tracks/small/board?format=csv"


def get_csv_rows(client: Client, address: str) -> list[dict[str, str]]:
    response = client.get(address)
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(response.content.decode())))


def test_board_csv_has_multipliers_and_scores(client: Client) -> None:
    _, entries = boards.create_board()
    run = Run.objects.filter(entry=entries["Better"]).earliest("pk")
    Score.objects.create(run=run, name="blimp/acc", value=0.5, stderr=0.1)
    rows = {row["id"]: row for row in get_csv_rows(client, BOARD)}
    first = rows[str(run.pk)]
    assert (first["title"], first["estimate.rank"], first["estimate.runs"]) == ("Better", "1", "3")
    assert float(first["estimate.low"]) < float(first["estimate.cm"]) < float(first["estimate.high"])
    assert (first["scores.blimp/acc.value"], first["scores.blimp/acc.stderr"]) == ("0.5", "0.1")
    assert {row["title"] for row in rows.values()} == {"main, 3 March", "Better", "Level", "Worse"}


def test_csv_links_to_the_next_page(client: Client) -> None:
    boards.create_board()
    address, rows = "/api/v1/runs?track=small&limit=4&format=csv", []
    while address:
        rows += get_csv_rows(client, address)
        link = client.get(address).headers.get("Link", "")
        address = link.removeprefix("<http://127.0.0.1:8000").partition(">")[0]
    assert len({row["id"] for row in rows}) == len(rows) == Run.objects.count()


@pytest.mark.parametrize("title", ['=HYPERLINK("http://x")', "+1", "-2", "@cmd", "\tx"])
def test_csv_escapes_spreadsheet_formulas(title: str) -> None:
    rows = [{"title": title, "value": -1.5, "labels": [title, "gpu"], "of": {"parts": [{"a": 1}]}, "none": None}]
    assert list(csv.reader(io.StringIO(write_csv(rows)))) == [
        ["title", "value", "labels", "of.parts", "none"],
        [f"'{title}", "-1.5", f"'{title} gpu", '{"a": 1}', ""],
    ]
