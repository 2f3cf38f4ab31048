"""An entry's page."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard.graph_comparison import compare_listings, describe_calls
from leaderboard.models import Entry, Run, Track
from leaderboard.submissions import intake
from tests.leaderboard.conftest import Repository
from tests.leaderboard.views.test_page_board import words
from tests.support import boards, scene
from tests.support.graph_jobs import store_graph

pytestmark = pytest.mark.django_db


def test_it_says_where_the_entry_stands_and_what_comes_next(client: Client) -> None:
    _, entries = boards.board()
    page = words(client.get(entries["Better"].get_absolute_url()).content)

    assert "the baseline would need" in page
    assert "rank of 4" in page
    assert "Compare with the baseline" in page


def test_runs_stand_by_budget_with_the_multiplier_at_each(client: Client) -> None:
    _, entries = boards.board()
    for seed in (1, 2):
        boards.judged(entries["Better"], 1.4, part=0.25, seed=seed)
    scene.run(entries["Better"], seed=77, state=Run.State.QUEUED)

    answer = client.get(entries["Better"].get_absolute_url())
    page = words(answer.content)

    assert page.index("1.0 × 10¹³ FLOPs the whole budget") < page.index("2.5 × 10¹² FLOPs 1/4 of the budget")
    assert page.count("multiplier 1.") >= 2
    assert "Multiplier by scale: 1/4 of the budget" in answer.content.decode().replace("\xa0", " ")
    assert "waiting" in page


def test_it_takes_few_queries_however_many_runs(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    _, entries = boards.board()
    for seed in range(20, 40):
        boards.judged(entries["Better"], 1.2, seed=seed)

    with django_assert_max_num_queries(10):
        client.get(entries["Better"].get_absolute_url())


def test_graph_of_an_entry_is_compared_with_mains(client: Client) -> None:
    track, entries = boards.board()
    Track.objects.update(is_traced=True)
    track.season.caps = {"parameters": 100_000}
    track.season.save()
    reference = store_graph(entries["baseline"])
    calls = {"features": {"aten::linear": 6, "aten::cumsum": 2}, "logits": {"aten::linear": 1}}
    graph = store_graph(entries["Better"], calls=calls, flops_per_token=880_000.0, scoring_flops_per_token=250_000.0)
    page = words(client.get(entries["Better"].get_absolute_url()).content)
    assert "Not compared with main. The baseline has no graph of the same configuration yet." in page
    graph.reference = reference
    graph.save()
    page = words(client.get(entries["Better"].get_absolute_url()).content)
    assert graph.hash in page
    assert "training FLOPs per token 8.8 × 10⁵ 8.0 × 10⁵ +10 %" in page
    assert "scoring FLOPs per token 2.5 × 10⁵ 2.5 × 10⁵ equal" in page
    assert "parameters 120,000 100,000" in page
    assert "aten::linear 79.5 %" in page
    assert "aten::linear 7 −2" in page
    assert "aten::cumsum 2 +2" in page
    detail = client.get(f"/api/v1/entries/{entries['Better'].pk}").json()
    assert detail["graph"]["hash"] == graph.hash


def test_calls_of_two_graphs_are_compared_line_by_line() -> None:
    one = {"features": {"calls": [{"operator": "aten::linear", "module": "blocks.0"}, {"operator": "aten::add"}]}}
    other = {"features": {"calls": [{"operator": "aten::linear", "module": "blocks.0"}, {"operator": "aten::mul"}]}}
    (hunk,) = compare_listings(*(list(describe_calls(content)) for content in (one, other)))
    assert [(line.kind, line.text) for line in hunk.lines] == [
        ("same", "aten::linear  blocks.0"),
        ("removed", "aten::add"),
        ("added", "aten::mul"),
    ]


@pytest.fixture
def entered(main: Repository, site: Any, track: Track) -> Entry:
    main.git("checkout", "--quiet", "-b", "idea")
    sha = main.commit(
        "An idea",
        {"trainer/models/smear.py": "class Model:\n    keys = '<b>two</b>\u202e'\n", "README.md": "Another train.\n"},
    )
    return intake.submit_entry(str(main.path), sha, "An idea", "smear", track)


def test_what_it_changes_can_be_read_by_everybody_and_is_only_text(client: Client, entered: Entry) -> None:
    answer = client.get(entered.get_absolute_url())
    page = words(answer.content)

    assert "2 files, +2 −2 against main" in page
    assert page.index("trainer/models/smear.py +1 −1") < page.index("README.md +1 −1 not trained with")
    assert b"<b>two</b>" not in answer.content
    assert "⟨U+202E⟩" in page, "nothing is hidden"


def test_a_commit_that_cannot_be_read_says_so_without_naming_folders(client: Client, entered: Entry) -> None:
    Entry.objects.filter(pk=entered.pk).update(sha="9" * 40)

    page = words(client.get(entered.get_absolute_url()).content)

    assert "This site has no copy of the commit" in page
    assert "/repositories" not in page
    assert str(entered.repository) not in page
