"""The board's query parameters: sorting, search, filters, columns and pages."""

from __future__ import annotations

import re

import pytest
from django.http import QueryDict
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.board import query, table
from leaderboard.board.query import BoardQuery
from leaderboard.models import Run, Score
from tests.support import boards, scene

pytestmark = [pytest.mark.sql, pytest.mark.django_db]


def list_titles(client: Client, query: str = "") -> list[str]:
    page = client.get(f"/{query}").content.decode()
    table = page[page.index('<table class="board') : page.index("</table>", page.index('<table class="board'))]
    return re.findall(r'<th scope="row" class="entry">\s*<a [^>]*>([^<]*)', table)


def test_board_row_without_value_is_last_in_both_orders(client: Client) -> None:
    _, entries = boards.create_board()
    for title, value in (("Better", 0.12), ("Worse", 0.08)):
        for run in entries[title].runs.all():
            Score.objects.create(run=run, name="average/normalized", value=value)
    Run.objects.update(revision=5)

    assert list_titles(client, "?sort=average")[:2] == ["Better", "Worse"]
    assert list_titles(client, "?sort=-average")[:2] == ["Worse", "Better"]
    assert b"12.0\xc2\xa0%" in client.get("/").content


def test_board_search_and_filters_keep_matching_rows_and_the_baseline(client: Client) -> None:
    track, entries = boards.create_board()
    boards.create_scored_run(scene.create_entry(track, "Väter", "gpt", author="Tomás", sha="abcd" + "0" * 36))
    entries["Better"].runs.update(trust=Run.Trust.REPLICATED)
    Run.objects.update(revision=7)

    for text in ("väter", "TOM%C3%81S", "abcd", "gpt+v%C3%A4"):
        assert list_titles(client, f"?q={text}") == ["main, 3 March", "Väter"], text
    assert list_titles(client, "?architecture=smear") == ["main, 3 March", "Better", "Level", "Worse"]
    assert list_titles(client, "?trust=replicated") == ["main, 3 March", "Better"]
    assert b"3 of 5" in client.get("/?architecture=smear").content
    page = client.get("/?q=missing").content.decode()
    assert 'class="pinned"' in page
    assert "No entry is like that." in page
    assert 'class="pinned"' not in client.get("/").content.decode()


def test_board_columns_can_be_chosen_and_empty_ones_are_hidden(client: Client) -> None:
    boards.create_board()
    default_page = client.get("/").content.decode()
    custom_page = client.get("/?columns=tokens&columns=author,nonsense").content.decode()

    for page in (default_page, custom_page):
        ticked = re.findall(r'value="(\w+)" checked', page)
        assert ticked == re.findall(r'<th scope="col" class="col-(\w+)', page), "the menu ticks what is shown"
    assert "col-average" not in default_page
    assert "col-bits" in default_page
    assert "col-bits" not in custom_page
    assert re.findall(r'<th scope="col" class="col-(\w+)', custom_page) == ["author", "tokens"]
    assert 'href="?sort=tokens&amp;columns=author,tokens"' in custom_page, "sort links keep the chosen columns"


def test_long_board_is_paginated(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (query, table):
        monkeypatch.setattr(module, "ROWS_PER_PAGE", 5)
    track, _ = boards.create_board()
    for number in range(5):
        boards.create_scored_run(
            scene.create_entry(track, f"Idea {number}", sha=f"{500 + number:040x}"), 1.3 + number / 1000
        )

    first, second = list_titles(client), list_titles(client, "?page=2")

    assert len(first) == 6, "the first page also shows the baseline"
    assert first[0] == "main, 3 March"
    assert len(second) == 4
    assert b'href="?page=2#results"' in client.get("/").content
    assert len(list_titles(client, "?page=99")) == 1


@given(
    query=st.dictionaries(
        st.sampled_from(["axis", "sort", "q", "trust", "architecture", "columns", "page"]),
        st.text(max_size=12) | st.sampled_from(["bits", "-bits", "-", "seconds", "2", "٣", "-1", "rank,bits", "\0"]),
    )
)
def test_board_query_of_any_address_round_trips(query: dict[str, str]) -> None:
    given_query = QueryDict(mutable=True)
    given_query.update(query)

    parsed = BoardQuery.from_address(given_query)

    assert isinstance(parsed, BoardQuery)
    assert BoardQuery.from_address(QueryDict(parsed.address().removeprefix("?"))) == parsed
