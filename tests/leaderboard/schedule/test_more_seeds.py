"""Admin actions that queue further seeds of an entry."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from leaderboard.models import Entry
from leaderboard.rankings.standings import compute_standings
from leaderboard.submissions import intake
from tests.support import boards


def run_admin_action(client: Client, action: str, entry: Entry) -> str:
    data = {"action": action, "_selected_action": [entry.pk]}
    return client.post("/admin/leaderboard/entry/", data, follow=True).content.decode()


def test_one_more_seed_action_queues_a_run(maintainer_client: Client, proposed_entry: Entry, maintainer: User) -> None:
    intake.approve_entry(proposed_entry, proposed_entry.sha, maintainer)
    run_admin_action(maintainer_client, "run_one_more_seed", proposed_entry)
    assert proposed_entry.runs.count() == 2
    assert len({run.seed for run in proposed_entry.runs.all()}) == 2
    assert "unknown how many seeds" in run_admin_action(maintainer_client, "run_needed_seeds", proposed_entry)


def test_needed_seeds_action_queues_the_estimated_seeds(maintainer_client: Client, site: Any) -> None:
    track, entries = boards.create_board()
    level = entries["Level"]
    row = compute_standings(track).get_row(level.pk)
    assert row
    assert row.estimate
    needed = row.estimate.seeds_needed
    assert needed
    assert f"Level: {needed} more queued." in run_admin_action(maintainer_client, "run_needed_seeds", level)
    assert level.runs.filter(state="queued").count() == needed


def test_one_more_seed_action_for_unapproved_entry_is_refused(maintainer_client: Client, proposed_entry: Entry) -> None:
    assert "only approved entries run" in run_admin_action(maintainer_client, "run_one_more_seed", proposed_entry)
    assert not proposed_entry.runs.exists()
