"""What the nightly train says about a commit of main, on a GitHub on a socket."""

from __future__ import annotations

from typing import Any

import pytest

from leaderboard import events, outbox
from leaderboard.integrations.github import commit_status
from leaderboard.models import Night, OutboxMessage, Run, Track
from scheduler.models import Node
from tests.leaderboard.conftest import Repository, finish
from tests.support import github_server
from tests.support.github_server import GitHub
from tests.support.nights import MONDAY, TUESDAY, tonight


@pytest.fixture(autouse=True)
def listening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LISTENERS", ("leaderboard.integrations.github.commit_status.update_nightly_checks",))


@pytest.fixture
def connected(github: GitHub, track: Track) -> GitHub:
    """The site trains what GitHub knows as trains/daily."""
    return github


def check(github: GitHub, sha: str) -> dict[str, Any]:
    """Let the workers do what is due; return the one check of the commit."""
    events.announce_events()
    outbox.process_due()
    assert not OutboxMessage.objects.exclude(state="done").exists(), list(
        OutboxMessage.objects.values_list("problem", flat=True)
    )
    (found,) = (row for row in github.repositories["trains/daily"].checks.values() if row["head_sha"] == sha)
    return found


def test_a_commit_of_main_says_how_far_its_train_is_in_one_check(
    connected: GitHub, main: Repository, node: Node
) -> None:
    night = tonight(MONDAY)
    assert night.run
    queued = check(connected, night.sha)
    assert (queued["status"], queued["output"]["title"]) == ("queued", "Tonight's train waits for a node.")
    assert queued["details_url"].endswith(night.run.get_absolute_url())
    run = finish(night.run, node)
    done = check(connected, night.sha)
    assert (done["id"], done["conclusion"]) == (queued["id"], "success")
    assert done["output"]["title"] == f"{run.bits_per_byte:.4f} bits per byte"


def test_a_main_that_cannot_be_read_is_marked_on_its_commit_with_the_reason(
    connected: GitHub,
    after_monday: Night,
    main: Repository,
) -> None:
    sha = main.commit("Broken", {"trainer/models/__init__.py": "ARCHITECTURES = {\n"})
    night = tonight(TUESDAY)
    assert (night.sha, night.problem) == (sha, "trainer/models/__init__.py is not valid Python.")
    broken = check(connected, sha)
    assert broken["conclusion"] == "failure"
    assert broken["output"]["title"].startswith("It cannot be trained: trainer/models/__init__.py is not valid")
    assert broken["details_url"].endswith("/calendar/")


@pytest.mark.parametrize(
    ("cause", "conclusion", "says"),
    [("model", "failure", "main is broken: "), ("infrastructure", "neutral", "The infrastructure failed, not main: ")],
)
def test_a_main_that_breaks_in_training_is_marked_and_a_machine_that_breaks_is_not_mains_fault(
    connected: GitHub, track: Track, cause: str, conclusion: str, says: str
) -> None:
    night = tonight(MONDAY)
    assert night.run
    failed = {"reason": "The loss became NaN at step 212.", "cause": cause}
    night.run.change_state(Run.State.FAILED, since=[Run.State.QUEUED], actor="site", message="Failed.", **failed)
    found = check(connected, night.sha)
    assert found["conclusion"] == conclusion
    assert found["output"]["title"] == f"{says}The loss became NaN at step 212."


def test_a_process_that_died_after_the_check_was_made_makes_no_second_one(connected: GitHub, track: Track) -> None:
    night = tonight(MONDAY)
    first = check(connected, night.sha)
    OutboxMessage.objects.update(state="pending", result={})
    assert check(connected, night.sha)["id"] == first["id"]


def test_with_a_plain_token_it_is_a_commit_status(connected: GitHub, track: Track, settings: Any) -> None:
    settings.GITHUB_APP_ID = settings.GITHUB_PRIVATE_KEY = ""
    settings.GITHUB_TOKEN = github_server.TOKEN
    night = tonight(MONDAY)
    events.announce_events()
    outbox.process_due()
    (status,) = connected.repositories["trains/daily"].statuses
    assert (status["state"], status["context"]) == ("pending", commit_status.NAME)
    assert night.run


def test_a_night_of_the_baseline_says_nothing(connected: GitHub, after_monday: Night) -> None:
    events.announce_events()
    outbox.process_due()
    before = OutboxMessage.objects.get().version
    assert tonight(TUESDAY).run
    events.announce_events()
    outbox.process_due()
    assert len(connected.repositories["trains/daily"].checks) == 1
    assert OutboxMessage.objects.get().version >= before


def test_a_main_that_is_not_on_github_is_told_nothing(track: Track) -> None:
    tonight(MONDAY)
    events.announce_events()
    assert not OutboxMessage.objects.exists()


def test_a_main_that_cannot_be_fetched_is_nobodys_broken_commit(
    connected: GitHub,
    after_monday: Night,
    main: Repository,
) -> None:
    main.path.rename(main.path.with_name("gone"))
    night = tonight(TUESDAY)
    assert night.sha == ""
    assert "There is no repository" in night.problem
