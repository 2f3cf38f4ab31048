"""Further seeds by one click: what a maintainer does when a row says that it needs more."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from leaderboard.models import Entry
from leaderboard.rankings.standings import compute_standings
from leaderboard.submissions import intake
from tests.support import boards


@pytest.fixture
def mara(client: Client, maintainer: User) -> Client:
    client.force_login(maintainer)
    return client


def act(client: Client, action: str, entry: Entry) -> str:
    data = {"action": action, "_selected_action": [entry.pk]}
    return client.post("/admin/leaderboard/entry/", data, follow=True).content.decode()


def test_the_seeds_that_an_entry_needs_are_one_click(mara: Client, idea: Entry, maintainer: User) -> None:
    intake.approve_entry(idea, idea.sha, maintainer)
    act(mara, "run_one_more_seed", idea)
    assert idea.runs.count() == 2
    assert len({run.seed for run in idea.runs.all()}) == 2
    assert "unknown how many seeds" in act(mara, "run_needed_seeds", idea)


def test_an_entry_that_is_level_gets_what_would_settle_it(mara: Client, site: Any) -> None:
    track, entries = boards.board()
    level = entries["Level"]
    row = compute_standings(track).get_row(level.pk)
    assert row
    assert row.estimate
    needed = row.estimate.seeds_needed
    assert needed
    assert f"Level: {needed} more queued." in act(mara, "run_needed_seeds", level)
    assert level.runs.filter(state="queued").count() == needed


def test_seeds_of_an_entry_that_nobody_approved_are_not_queued(mara: Client, idea: Entry) -> None:
    assert "only approved entries run" in act(mara, "run_one_more_seed", idea)
    assert not idea.runs.exists()
