"""User journeys across pages: a visitor, and a contributor with a maintainer.

That of a sponsor is `test_lending_journey.py`, with a real agent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from leaderboard.models import Run
from leaderboard.submissions import intake
from tests.leaderboard.conftest import FILES, Repository, finish_run
from tests.support import scene

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def repository(tmp_path: Path, settings: Any) -> Repository:
    """The main repository of a site whose folders are in this test's folder."""
    (tmp_path / "main").mkdir()
    made = Repository(tmp_path / "main")
    made.git("init", "--quiet", "-b", "main")
    made.commit("First train", dict(FILES))
    settings.MAIN_REPOSITORY, settings.MAIN_BRANCH = str(made.path), "main"
    settings.REPOSITORIES, settings.SIGNING_KEY = tmp_path / "repositories", tmp_path / "keys" / "signing.key"
    return made


@pytest.mark.check
def test_contributor_entry_is_approved_trained_and_on_the_board(
    open_as: Callable[..., Page], open_page: Callable[..., Page], repository: Repository, tmp_path: Path
) -> None:
    mira, mara = User.objects.create_user("mira"), User.objects.create_superuser("mara")
    track = scene.create_track(budget="20steps", expected_seconds=10, config={"model": {"depth": 2}})
    fork = repository.fork(tmp_path / "fork")
    sha = fork.commit("An idea", {"trainer/models/smear.py": "class Model:\n    gate = True\n"})
    idea = intake.submit_entry(str(fork.path), "main", "A gate", "smear", track)
    idea.requested_by = mira
    idea.hypothesis = "A gate lets a head say nothing."
    idea.save()

    # The entry's page names what it waits for.
    page = open_as(mira, idea.get_absolute_url())
    expect(page.get_by_role("main")).to_contain_text("maintainer")

    # A maintainer reads the diff and approves this commit.
    admin = open_as(mara, "/admin/")
    admin.get_by_role("link", name="1 waiting for approval").click()
    admin.get_by_role("link", name="A gate").click()
    expect(admin.get_by_text("gate = True").first).to_be_visible()
    admin.get_by_role("button", name=f"Approve exactly {sha[:8]}").click()
    admin.wait_for_url("**/queue/")
    run = Run.objects.select_related("job").get(entry=idea)
    assert run.state == Run.State.QUEUED

    # The queue lists it, and its author can hold it.
    queue = open_page("/queue/")
    expect(queue.get_by_role("main")).to_contain_text("A gate")
    page.goto(run.get_absolute_url())
    page.get_by_role("button", name="Hold").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    run.job.refresh_from_db()  # type: ignore[union-attr]
    assert run.job
    assert run.job.state == "held"
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Hold")).to_be_visible()
    run.job.refresh_from_db()
    assert run.job.state == "queued"

    # A node trains and a trusted node scores it. The open page updates itself.
    finish_run(run, scene.create_node("cellar"))
    expect(page.get_by_role("main")).to_contain_text("2.5000")
    page.goto(idea.get_absolute_url())
    expect(page.get_by_role("main")).to_contain_text("2.5")
    board = open_page("/")
    expect(board.locator("table.board")).to_contain_text("A gate")
