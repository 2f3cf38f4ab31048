"""Announcement of events: each listener gets each event once."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from django.db import connection, transaction

from leaderboard import events as announcing
from leaderboard import outbox
from leaderboard.models import OutboxMessage
from scheduler.models import Event, Node
from tests.support.waits import WAIT_SECONDS

pytestmark = pytest.mark.sql

received_messages: list[str] = []


def record_messages(events: Sequence[Event]) -> None:
    received_messages.extend(event.sentence for event in events)


def enqueue_or_fail(events: Sequence[Event]) -> None:
    """Enqueue a message for each event, and fail for one of them."""
    for event in events:
        outbox.enqueue_once("notice", f"event:{event.sentence}")
        if event.sentence == "bad":
            raise RuntimeError("not this one")


def set_listeners(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    received_messages.clear()
    monkeypatch.setattr(announcing, "LISTENERS", tuple(f"{__name__}.{name}" for name in names))


def create_events(node: Node, *sentences: str) -> None:
    for sentence in sentences:
        Event.record("site", node, sentence)


def interrupt_in_transaction() -> None:
    with transaction.atomic():
        announcing.announce_events()
        raise KeyboardInterrupt


@pytest.fixture
def node_without_events(node: Node) -> Node:
    Event.objects.all().delete()
    return node


def test_event_committed_late_is_announced(node_without_events: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id is lower than that of an announced event, so a cursor of ids would skip it."""
    set_listeners(monkeypatch, "record_messages")
    create_events(node_without_events, "late", "early")
    late = Event.objects.get(sentence="late")
    Event.objects.filter(pk=late.pk).delete()
    announcing.announce_events()
    late.save(force_insert=True)
    announcing.announce_events()
    assert received_messages == ["early", "late"]


def test_event_that_fails_in_listener_does_not_block_others(
    node_without_events: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_listeners(monkeypatch, "enqueue_or_fail", "record_messages")
    create_events(node_without_events, "good", "bad", "better")
    assert announcing.announce_events() == 3
    assert received_messages == ["good", "bad", "better"]
    assert set(OutboxMessage.objects.values_list("key", flat=True)) == {"event:good", "event:better"}


def test_events_of_interrupted_transaction_are_announced_again(
    node_without_events: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_listeners(monkeypatch, "enqueue_or_fail")
    create_events(node_without_events, "one")
    with pytest.raises(KeyboardInterrupt):
        interrupt_in_transaction()
    assert not OutboxMessage.objects.exists()
    assert announcing.announce_events() == 1
    assert OutboxMessage.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_concurrent_processes_announce_each_event_once(monkeypatch: pytest.MonkeyPatch) -> None:
    set_listeners(monkeypatch, "record_messages")
    monkeypatch.setattr(announcing, "BATCH_SIZE", 3)
    node = Node.objects.create(name="busy")
    create_events(node, *(f"event {number}" for number in range(20)))

    def announce() -> None:
        try:
            announcing.announce_events()
        finally:
            connection.close()

    threads = [threading.Thread(target=announce) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    announcing.announce_events()
    assert sorted(received_messages) == sorted(f"event {number}" for number in range(20))
