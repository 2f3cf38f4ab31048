"""The check that the nightly run sets on its commit of main, on a GitHub server."""

from __future__ import annotations

from typing import Any

import pytest

from leaderboard import events, outbox
from leaderboard.models import Night, OutboxMessage
from leaderboard.run_states import RunEvent, apply_event
from scheduler.models import Node
from tests.leaderboard.conftest import Repository, finish_run
from tests.support.github_server import GitHub
from tests.support.nights import MONDAY, TUESDAY, start_night

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("track")]


@pytest.fixture(autouse=True)
def _commit_status_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LISTENERS", ("leaderboard.integrations.github.commit_status.update_nightly_checks",))


def process_and_get_check(github: GitHub, sha: str) -> dict[str, Any]:
    """Process events and outbox; return the only check of the commit."""
    events.announce_events()
    outbox.process_due()
    assert not OutboxMessage.objects.exclude(state="done").exists(), list(
        OutboxMessage.objects.values_list("problem", flat=True)
    )
    (check,) = (row for row in github.repositories["trains/daily"].checks.values() if row["head_sha"] == sha)
    return check


def test_nightly_run_updates_one_check_of_its_commit(github: GitHub, node: Node) -> None:
    night = start_night(MONDAY)
    queued_check = process_and_get_check(github, night.sha)
    assert (queued_check["status"], queued_check["output"]["title"]) == ("queued", "Tonight's run waits for a node.")
    assert queued_check["details_url"].endswith(night.run.get_absolute_url())
    run = finish_run(night.run, node)
    finished_check = process_and_get_check(github, night.sha)
    assert (finished_check["id"], finished_check["conclusion"]) == (queued_check["id"], "success")
    assert finished_check["output"]["title"] == f"{run.bits_per_byte:.4f} bits per byte"


def test_nightly_commit_that_is_invalid_gets_failed_check_with_reason(
    github: GitHub, finished_monday_night: Night, main_repository: Repository
) -> None:
    sha = main_repository.commit("Broken", {"trainer/models/__init__.py": "ARCHITECTURES = {\n"})
    night = start_night(TUESDAY)
    assert (night.sha, night.problem) == (sha, "trainer/models/__init__.py is not valid Python.")
    broken = process_and_get_check(github, sha)
    assert broken["conclusion"] == "failure"
    assert broken["output"]["title"].startswith("It cannot be trained: trainer/models/__init__.py is not valid")
    assert broken["details_url"].endswith("/calendar/")


@pytest.mark.parametrize(
    ("cause", "conclusion", "prefix"),
    [("model", "failure", "main is broken: "), ("infrastructure", "neutral", "The infrastructure failed, not main: ")],
)
def test_nightly_run_that_fails_gets_check_by_its_cause(
    github: GitHub, cause: str, conclusion: str, prefix: str
) -> None:
    night = start_night(MONDAY)
    assert night.run
    failed = {"reason": "The loss became NaN at step 212.", "cause": cause}
    apply_event(night.run, RunEvent.FAIL, actor="site", message="Failed.", **failed)
    check = process_and_get_check(github, night.sha)
    assert check["conclusion"] == conclusion
    assert check["output"]["title"] == f"{prefix}The loss became NaN at step 212."
