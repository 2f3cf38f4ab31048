"""Journeys of a contributor and of a maintainer. They know only what pages and the tutorial say.

That of a sponsor is `test_lending_journey.py`, with a real agent.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from playwright.sync_api import Page, expect

from leaderboard.models import Run
from leaderboard.submissions import intake
from tests.leaderboard.conftest import FILES, GIT, Repository, finish_run
from tests.support import scene
from tests.support.node_jobs import end_lease, lease_job
from tests.support.paths import REPOSITORY

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PASSWORD = "a password of this test only"


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


def run_tutorial(page: str, folder: Path) -> list[str]:
    """Run the tutorial's commands that write and commit a file; return what it submits to a local site."""
    for block in re.findall(r"^```sh\n((?:cat >|sed|git).*?)^```", page, re.M | re.S):
        ours = re.sub(r"^\.venv/.*\n", "", block, flags=re.M)
        subprocess.run(["bash", "-euc", ours], cwd=folder, env=GIT, check=True, capture_output=True)
    return shlex.split(re.findall(r"manage\.py (submit_entry .+)", page)[0])


@pytest.mark.check
def test_contributor_follows_pages_and_tutorial_to_a_verdict(
    open_page: Callable[..., Page], repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.create_track(budget="20steps", expected_seconds=10, config={"model": {"depth": 2}})
    fork = repository.fork(tmp_path / "fork")

    # The first page leads to the tutorial.
    page = open_page("/")
    page.get_by_role("navigation").get_by_role("link", name="Enter an idea").click()
    expect(page.get_by_role("heading", name="Enter an idea")).to_be_in_viewport()
    tutorial = page.get_by_role("link", name="Your first entry").get_attribute("href") or ""
    assert tutorial.startswith("/docs/")
    file = REPOSITORY / f"{tutorial.strip('/')}.md"

    # Its commands enter the idea, and print where its run is.
    command = run_tutorial(file.read_text(), fork.path)
    monkeypatch.chdir(fork.path)
    call_command(*command, stdout=(printed := io.StringIO()))
    (address,) = re.findall(r"/runs/\d+/", printed.getvalue())
    page.get_by_role("link", name="Departures").click()
    page.get_by_role("main").get_by_role("link", name="Scaled keys").first.click()
    expect(page.get_by_role("heading", name="Scaled keys")).to_be_visible()

    # A node trains and a trusted node scores it. The open page updates itself.
    page.goto(address)
    finish_run(Run.objects.get(), scene.create_node("cellar"))
    expect(page.get_by_role("main")).to_contain_text("2.5000")
    page.get_by_role("link", name="Board", exact=True).click()
    expect(page.locator("table.board")).to_contain_text("Scaled keys")


def test_maintainer_signs_in_approves_an_entry_and_runs_it_again(
    open_page: Callable[..., Page], repository: Repository, tmp_path: Path
) -> None:
    User.objects.create_superuser("mara", password=PASSWORD)
    track = scene.create_track(budget="20steps", expected_seconds=10, config={"model": {"depth": 2}}, nightly=True)
    fork = repository.fork(tmp_path / "fork")
    sha = fork.commit("An idea", {"trainer/models/smear.py": "class Model:\n    gate = True\n"})
    idea = intake.submit_entry(str(fork.path), "main", "A gate", "smear", track)
    call_command("install_schedule")

    # Signing in leads to what waits.
    page = open_page("/")
    page.get_by_role("link", name="Sign in").click()
    page.get_by_label("Username").fill("mara")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name=track.name, exact=True).click()
    expect(page.get_by_role("row", name="Trusted scorer")).to_contain_text("missing")
    page.get_by_role("link", name="Home").click()

    # The diff is read, and exactly this commit approved.
    page.get_by_role("link", name="1 waiting for approval").click()
    page.get_by_role("link", name="A gate").click()
    expect(page.get_by_text("gate = True").first).to_be_visible()
    page.get_by_role("button", name=f"Approve exactly {sha[:8]}").click()
    page.wait_for_url("**/queue/")
    run = Run.objects.select_related("job").get(entry=idea)

    # The run is held and resumed on its page.
    page.goto(run.get_absolute_url())
    for done, next_action in (("Hold", "Resume"), ("Resume", "Hold")):
        page.get_by_role("button", name=done).click()
        expect(page.get_by_role("button", name=next_action)).to_be_visible()

    # It fails: the maintainer's first page leads to it, and its page to another run.
    assert run.job
    lease = lease_job(run.job, scene.create_node("cellar", trusted=True))
    end_lease(lease, "failed", cause="model", reason="The loss is not a number.")
    page.goto("/admin/")
    page.locator(".overview").get_by_role("link", name="A gate").click()
    expect(page.get_by_text("The loss is not a number.").first).to_be_visible()
    expect(page.get_by_role("button", name="Save")).to_have_count(0)
    page.get_by_role("button", name="Run the entry again with a new seed").click()
    expect(page.get_by_text(f"Run {run.pk + 1} is queued")).to_be_visible()
