"""What the address of the board asks: order, search, filters, columns, pages."""

from __future__ import annotations

import re

import pytest
from django.http import QueryDict
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.board.query import ROWS_PER_PAGE, SORTS, BoardQuery, load_board_rows
from leaderboard.board.table import build_board_table
from leaderboard.models import Run, Score
from leaderboard.rankings.standings_store import load_standings
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


def titles(client: Client, query: str = "") -> list[str]:
    page = client.get(f"/{query}").content.decode()
    table = page[page.index('<table class="board') : page.index("</table>", page.index('<table class="board'))]
    return re.findall(r'<th scope="row" class="entry">\s*<a [^>]*>([^<]*)', table)


def test_the_board_is_sorted_by_any_column_both_ways(client: Client) -> None:
    boards.board()

    assert titles(client) == ["Better", "Level", "main, 3 March", "Worse"]
    assert titles(client, "?sort=entry") == ["Better", "Level", "main, 3 March", "Worse"]
    assert titles(client, "?sort=-entry") == ["Worse", "main, 3 March", "Level", "Better"]
    assert titles(client, "?sort=-multiplier")[0] == "Worse"
    assert titles(client, "?sort=bits")[0] == "Better"
    assert titles(client, "?sort=-bits")[0] == "Worse"


def test_the_head_that_sorts_is_told_to_everybody_and_turns_the_order_around(client: Client) -> None:
    boards.board()

    page = client.get("/?sort=bits").content.decode()

    assert re.search(r'class="col-bits number"\s+aria-sort="ascending">\s*<a href="\?sort=-bits"', page)
    assert page.count("aria-sort") == 1


def test_a_row_without_a_value_is_last_whichever_way(client: Client) -> None:
    _, entries = boards.board()
    for title, value in (("Better", 0.12), ("Worse", 0.08)):
        for run in entries[title].runs.all():
            Score.objects.create(run=run, name="average/normalised", value=value)
    Run.objects.update(revision=5)

    assert titles(client, "?sort=average")[:2] == ["Better", "Worse"]
    assert titles(client, "?sort=-average")[:2] == ["Worse", "Better"]
    assert b"12.0\xc2\xa0%" in client.get("/").content


def test_a_search_looks_at_titles_authors_architectures_and_commits(client: Client) -> None:
    track, _ = boards.board()
    boards.judged(scene.entry(track, "Väter", "gpt", author="Tomás", sha="abcd" + "0" * 36))

    for words in ("väter", "TOM%C3%81S", "abcd", "gpt+v%C3%A4"):
        assert titles(client, f"?q={words}") == ["main, 3 March", "Väter"], words
    assert titles(client, "?architecture=smear") == ["main, 3 March", "Better", "Level", "Worse"]
    assert b"3 of 5" in client.get("/?architecture=smear").content


def test_the_baseline_is_always_to_be_seen(client: Client) -> None:
    boards.board()

    assert titles(client, "?q=worse") == ["main, 3 March", "Worse"]
    page = client.get("/?q=nobody").content.decode()
    assert 'class="pinned"' in page
    assert "No entry is like that." in page
    assert 'class="pinned"' not in client.get("/").content.decode()


def test_a_filter_by_badge_keeps_what_has_it(client: Client) -> None:
    _, entries = boards.board()
    entries["Better"].runs.update(trust=Run.Trust.REPLICATED)
    Run.objects.update(revision=7)

    assert titles(client, "?trust=replicated") == ["main, 3 March", "Better"]


def test_columns_are_chosen_and_empty_usual_ones_are_left_out(client: Client) -> None:
    boards.board()
    usual = client.get("/").content.decode()
    chosen = client.get("/?columns=tokens&columns=author,nonsense").content.decode()

    assert "col-average" not in usual
    assert "col-bits" in usual
    assert "col-bits" not in chosen
    assert re.findall(r'<th scope="col" class="col-(\w+)', chosen) == ["author", "tokens"]
    assert 'href="?sort=tokens&amp;columns=author,tokens"' in chosen, "what is chosen stays chosen"


def test_a_long_board_comes_in_pages(client: Client) -> None:
    track, _ = boards.board()
    for number in range(ROWS_PER_PAGE):
        boards.judged(scene.entry(track, f"Idea {number}", sha=f"{500 + number:040x}"), 1.3 + number / 1000)

    first, second = titles(client), titles(client, "?page=2")

    assert len(first) == ROWS_PER_PAGE + 1, "with the baseline, which is further down"
    assert first[0] == "main, 3 March"
    assert len(second) == 4
    assert b'href="?page=2#results"' in client.get("/").content
    assert len(titles(client, "?page=99")) == 1


@given(
    query=st.dictionaries(
        st.sampled_from(["axis", "sort", "q", "trust", "architecture", "columns", "page"]),
        st.text(max_size=12) | st.sampled_from(["bits", "-bits", "-", "seconds", "2", "٣", "-1", "rank,bits", "\0"]),
    )
)
def test_any_address_is_read_and_reads_back_the_same(query: dict[str, str]) -> None:
    given_query = QueryDict(mutable=True)
    given_query.update(query)

    parsed = BoardQuery.from_address(given_query)

    assert isinstance(parsed, BoardQuery)
    assert BoardQuery.from_address(QueryDict(parsed.address().removeprefix("?"))) == parsed


def test_sorting_keeps_every_row_once() -> None:
    track, _ = boards.board()
    table = load_standings(track)
    entries = sorted(table.rows.values_list("entry", flat=True))

    for sort in SORTS:
        for is_reversed in (False, True):
            query = BoardQuery(sort=sort, is_reversed=is_reversed)
            lines = build_board_table(table, query, load_board_rows(table, query)).lines
            assert sorted(line.row.entry_id for line in lines) == entries
