"""An entry's page."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import Entry, Run, Track
from leaderboard.submissions import intake
from tests.leaderboard.conftest import Repository
from tests.leaderboard.views.test_page_board import words
from tests.support import boards, scene

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
