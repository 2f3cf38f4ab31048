"""Every Event is told once to those who listen."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from django.db import OperationalError, connection, transaction

from leaderboard import events as announcing
from leaderboard import outbox
from leaderboard.models import OutboxMessage
from scheduler.models import Event, Node

heard: list[str] = []


def listener(events: Sequence[Event]) -> None:
    heard.extend(event.sentence for event in events)


def fussy(events: Sequence[Event]) -> None:
    """Cannot take one kind of Event; asks for an effect for the others."""
    for event in events:
        outbox.enqueue_once("notice", f"fussy:{event.sentence}")
        if event.sentence == "bad":
            raise RuntimeError("not this one")


def broken_database(events: Sequence[Event]) -> None:
    raise OperationalError("the database is away")


def listen(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    heard.clear()
    monkeypatch.setattr(announcing, "LISTENERS", tuple(f"{__name__}.{name}" for name in names))


def happen(node: Node, *sentences: str) -> None:
    for sentence in sentences:
        Event.record("site", node, sentence)


def die_in_a_transaction() -> None:
    with transaction.atomic():
        announcing.announce_events()
        raise KeyboardInterrupt


@pytest.fixture
def quiet_node(node: Node) -> Node:
    Event.objects.all().delete()
    return node


def test_what_has_happened_is_told_once_and_in_order(quiet_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    listen(monkeypatch, "listener")
    monkeypatch.setattr(announcing, "BATCH_SIZE", 2)
    happen(quiet_node, "one", "two", "three")
    assert announcing.announce_events() == 3
    assert announcing.announce_events() == 0
    happen(quiet_node, "four")
    assert announcing.announce_events() == 1
    assert heard == ["one", "two", "three", "four"]


def test_an_event_that_is_committed_late_is_not_passed_over(quiet_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id is lower than that of one that has been announced: a cursor of ids would never look back."""
    listen(monkeypatch, "listener")
    happen(quiet_node, "late", "early")
    late = Event.objects.get(sentence="late")
    Event.objects.filter(pk=late.pk).delete()
    announcing.announce_events()
    late.save(force_insert=True)
    announcing.announce_events()
    assert heard == ["early", "late"]


def test_one_that_a_listener_cannot_take_silences_nothing_else(
    quiet_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen(monkeypatch, "fussy", "listener")
    happen(quiet_node, "good", "bad", "better")
    assert announcing.announce_events() == 3
    assert heard == ["good", "bad", "better"]
    assert set(OutboxMessage.objects.values_list("key", flat=True)) == {"fussy:good", "fussy:better"}


def test_when_the_database_is_away_nothing_counts_as_told(quiet_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    listen(monkeypatch, "listener", "broken_database")
    happen(quiet_node, "one")
    with pytest.raises(OperationalError):
        announcing.announce_events()
    listen(monkeypatch, "listener")
    assert announcing.announce_events() == 1


def test_what_a_dying_process_had_begun_is_undone_with_the_mark(
    quiet_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen(monkeypatch, "fussy")
    happen(quiet_node, "one")
    with pytest.raises(KeyboardInterrupt):
        die_in_a_transaction()
    assert not OutboxMessage.objects.exists()
    assert announcing.announce_events() == 1
    assert OutboxMessage.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_processes_tell_each_event_once(monkeypatch: pytest.MonkeyPatch) -> None:
    listen(monkeypatch, "listener")
    monkeypatch.setattr(announcing, "BATCH_SIZE", 3)
    node = Node.objects.create(name="busy")
    happen(node, *(f"event {number}" for number in range(20)))

    def announce() -> None:
        try:
            announcing.announce_events()
        finally:
            connection.close()

    threads = [threading.Thread(target=announce) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    announcing.announce_events()
    assert sorted(heard) == sorted(f"event {number}" for number in range(20))


def test_those_who_listen_are_there() -> None:
    from django.utils.module_loading import import_string

    for path in announcing.LISTENERS:
        assert callable(import_string(path))
