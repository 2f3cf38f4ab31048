"""Every process that says or asks something on GitHub dies over it, before and after it is done: nothing is doubled."""

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
from leaderboard.models import Delivery, Entry, OutboxMessage, Run, Track
from scheduler.models import Event, Node
from tests.leaderboard.conftest import Repository, finish
from tests.support.github_server import GitHub
from tests.support.pull_request_author import Conversation


class Died(BaseException):
    """Nobody catches it: whatever was not committed is gone, and claims stay."""


class Deaths:
    """The first request of each kind is never sent; the second one is, and its sender does not live to hear of it."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.count = 0

    def over(self, send_once: Any) -> Any:
        def deadly(connection: Connection, method: str, address: str, *rest: Any) -> Any:
            key = f"{method} {address}"
            self.seen[key] = self.seen.get(key, 0) + 1
            if self.seen[key] == 1:
                self.die()
            answer = send_once(connection, method, address, *rest)
            if self.seen[key] == 2:
                self.die()
            return answer

        return deadly

    def die(self) -> None:
        self.count += 1
        raise Died


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deaths]:
    made = Deaths()
    monkeypatch.setattr(Connection, "send_once", made.over(Connection.send_once))
    yield made
    assert made.count > 10


class Mortal(Conversation):
    """The site's work is done by processes that die; others find what they left."""

    def settle(self, *, once: bool = False) -> None:
        for _ in range(100):
            long_ago = timezone.now() - timedelta(seconds=1)
            OutboxMessage.objects.filter(state=OutboxMessage.State.PENDING).update(not_before=long_ago)
            OutboxMessage.objects.filter(state=OutboxMessage.State.CLAIMED).update(claimed_until=long_ago)
            Delivery.objects.filter(state=Delivery.State.NEW).update(claimed_until=long_ago, not_before=long_ago)
            try:
                if not deliveries.process_due() + events.announce_events() + outbox.process_due():
                    return
            except Died:
                continue
        raise AssertionError("it never comes to rest")

    def hand_over(self, event: str, payload: dict[str, Any], guid: str = "") -> None:
        deliveries.store_delivery(guid or str(len(self.github.deliveries)), event, guid.encode(), payload)


def test_a_pull_request_comes_to_its_verdict_once(
    github: GitHub, main: Repository, track: Track, tmp_path: Path, able: Node, deaths: Deaths, settings: Any
) -> None:
    settings.SMOKE_UNAPPROVED = "nobody"
    pull = Mortal.of(github, main, tmp_path / "fork")
    pull.open(body="---\ntrack: small\nhypothesis: It helps.\n---")
    assert "2 things are in the way" in pull.comment
    pull.change("edited", body="---\ntrack: small\nhypothesis: It helps.\nexpected_effect: 3 %\ncontact: @ada\n---")
    pull.push({"trainer/models/smear.py": "x = 3\n"})
    pull.say("mara", f"/approve {pull.sha[:8]}")
    pull.say("eve", "/approve")
    pull.smoke()
    finish(Run.objects.get(), able)
    pull.settle()

    assert [entry.state for entry in Entry.objects.order_by("pk")] == ["withdrawn", "approved"]
    assert "2.5000 bits per byte" in pull.comment
    assert len(pull.answers) == 1
    assert pull.check == ("completed", "success", "2.5000 bits per byte")
    assert len(github.repository("trains/daily").checks) == 2  # one for each commit
    assert [content for _, content in github.repository("trains/daily").reactions] == ["+1", "confused"]
    assert Event.objects.filter(sentence__startswith=f"Commit {pull.sha[:8]} approved").count() == 1
    assert not OutboxMessage.objects.exclude(state=OutboxMessage.State.DONE).exists()
