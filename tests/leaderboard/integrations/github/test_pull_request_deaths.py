"""Workers crash before and after each GitHub request: no comment, check or command is duplicated."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from leaderboard import events, outbox
from leaderboard.integrations.github import deliveries
from leaderboard.integrations.github.connection import Connection
from leaderboard.models import Entry, OutboxMessage, Run, Track
from scheduler.models import Event, Node
from tests.leaderboard.conftest import Repository, finish_run
from tests.support.github_server import GitHub
from tests.support.pull_request_author import PullRequestAuthor

pytestmark = pytest.mark.processes


class CrashError(BaseException):
    """Not an `Exception`, so no handler catches it: uncommitted rows are lost and claims stay."""


class RequestCrashes:
    """Crashes the first request of each kind before it is sent, and the second after it was sent."""

    def __init__(self) -> None:
        self.attempts: dict[str, int] = {}
        self.count = 0

    def wrap_send(self, send_once: Any) -> Any:
        def send_and_crash(connection: Connection, method: str, address: str, *rest: Any) -> Any:
            key = f"{method} {address}"
            self.attempts[key] = self.attempts.get(key, 0) + 1
            if self.attempts[key] == 1:
                self.crash()
            answer = send_once(connection, method, address, *rest)
            if self.attempts[key] == 2:
                self.crash()
            return answer

        return send_and_crash

    def crash(self) -> None:
        self.count += 1
        raise CrashError


@pytest.fixture
def request_crashes(monkeypatch: pytest.MonkeyPatch) -> Iterator[RequestCrashes]:
    crashes = RequestCrashes()
    monkeypatch.setattr(Connection, "send_once", crashes.wrap_send(Connection.send_once))
    yield crashes
    assert crashes.count > 10


class CrashingPullRequestAuthor(PullRequestAuthor):
    """A conversation with a site whose workers crash; later workers continue their work."""

    def process_pending_work(self, *, once: bool = False) -> None:
        for _ in range(100):
            long_ago = timezone.now() - timedelta(seconds=1)
            OutboxMessage.objects.filter(state=OutboxMessage.State.PENDING).update(not_before=long_ago)
            OutboxMessage.objects.filter(state=OutboxMessage.State.CLAIMED).update(claimed_until=long_ago)
            try:
                if not events.announce_events() + outbox.process_due():
                    return
            except CrashError:
                continue
        raise AssertionError("work is still pending after 100 rounds")

    def process_delivery(self, event: str, payload: dict[str, Any]) -> None:
        deliveries.store_delivery(event, str(len(self.github.deliveries)).encode(), payload)


def test_pull_request_with_crashing_workers_gets_one_result(
    github: GitHub,
    main_repository: Repository,
    track: Track,
    tmp_path: Path,
    capable_node: Node,
    request_crashes: RequestCrashes,
    settings: Any,
) -> None:
    settings.SMOKE_UNAPPROVED = "nobody"
    pull = CrashingPullRequestAuthor.create_fork(github, main_repository, tmp_path / "fork")
    pull.open(body="---\ntrack: small\nhypothesis: It helps.\n---")
    assert "2 things are in the way" in pull.comment
    pull.change("edited", body="---\ntrack: small\nhypothesis: It helps.\nexpected_effect: 3 %\ncontact: @ada\n---")
    pull.push({"trainer/models/smear.py": "x = 3\n"})
    pull.post_comment("mara", f"/approve {pull.sha[:8]}")
    pull.post_comment("eve", "/approve")
    pull.finish_smoke_test()
    finish_run(Run.objects.get(), capable_node)
    pull.process_pending_work()

    assert [entry.state for entry in Entry.objects.order_by("pk")] == ["withdrawn", "approved"]
    assert "2.5000 bits per byte" in pull.comment
    assert len(pull.answers) == 1
    assert pull.check == ("completed", "success", "2.5000 bits per byte")
    assert len(github.get_or_create_repository("trains/daily").checks) == 2  # one for each commit
    assert [content for _, content in github.get_or_create_repository("trains/daily").reactions] == ["+1", "confused"]
    assert Event.objects.filter(sentence__startswith=f"Commit {pull.sha[:8]} approved").count() == 1
    assert not OutboxMessage.objects.exclude(state=OutboxMessage.State.DONE).exists()
