"""That nodes are here is written down for many of them together, a moment after they said so."""

from __future__ import annotations

import time
from datetime import timedelta

import httpx
import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from scheduler.models import Node
from scheduler.node_api import last_seen, polls
from scheduler.node_api.last_seen import Notes, Word
from tests.support.pool import HARDWARE, ROOT, bearer, make_node
from trainer import protocol

AGO = timedelta(minutes=1)
FULLER = HARDWARE.model_copy(update={"disk_free_bytes": HARDWARE.disk_free_bytes - 1})


def online(name: str) -> Node:
    return make_node(name, state=Node.State.ONLINE, last_seen=timezone.now() - AGO)[0]


def ask(node: Node, notes: Notes | None, **fields: object) -> None:
    polls.Question(node, protocol.Poll(**{"hardware": HARDWARE, **fields})).first(notes)  # type: ignore[arg-type]


def rows(*nodes: Node) -> list[Node]:
    return [Node.objects.get(pk=node.pk) for node in nodes]


def test_what_was_noted_stands_in_the_rows_once_it_is_written(db: None) -> None:
    notes, silent, told = Notes(), online("silent"), online("told")
    before = timezone.now()
    ask(silent, notes)
    ask(told, notes, hardware=FULLER, health=protocol.Health(temperature_celsius=61))
    assert all(row.last_seen is not None and row.last_seen < before for row in rows(silent, told))
    notes.write()
    first, second = rows(silent, told)
    assert first.last_seen is not None
    assert first.last_seen >= before
    assert (first.hardware, first.health) == (HARDWARE.model_dump(mode="json"), {})
    assert second.hardware["disk_free_bytes"] == FULLER.disk_free_bytes
    assert second.health["temperature_celsius"] == 61
    assert not notes


def test_without_notes_it_stands_there_at_once(db: None) -> None:
    node, before = online("loco"), timezone.now()
    ask(node, None, hardware=FULLER)
    (row,) = rows(node)
    assert row.last_seen is not None
    assert row.last_seen >= before
    assert row.hardware["disk_free_bytes"] == FULLER.disk_free_bytes


def test_a_node_that_comes_back_is_online_at_once(db: None) -> None:
    notes, node, before = Notes(), make_node("loco", state=Node.State.OFFLINE)[0], timezone.now()
    ask(node, notes, hardware=FULLER)
    (row,) = rows(node)
    assert (row.state, row.hardware) == (Node.State.ONLINE, FULLER.model_dump(mode="json"))
    assert row.last_seen is not None
    assert row.last_seen >= before


def test_who_waits_is_matched_by_what_it_said_even_before_that_is_written(db: None) -> None:
    node = online("loco")
    question = polls.Question(node, protocol.Poll(hardware=FULLER))
    question.first(Notes())
    question.again()
    assert question.node.hardware["disk_free_bytes"] == FULLER.disk_free_bytes


@pytest.mark.parametrize("count", [1, 20])
def test_writing_costs_a_transaction_however_many_there_are(
    db: None, count: int, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    notes, now = Notes(), timezone.now()
    nodes = [online(f"node-{number}") for number in range(count)]
    for node in reversed(nodes):
        notes.take(node, Word(now))
    with django_assert_num_queries(3):
        notes.write()
    assert {row.last_seen for row in rows(*nodes)} == {now}


def test_what_cannot_be_written_is_dropped_and_logged(
    db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from django.db import OperationalError

    def fail(words: object) -> None:
        raise OperationalError("the disk is full")

    notes = Notes()
    notes.take(online("loco"), Word(timezone.now()))
    monkeypatch.setattr(last_seen, "write", fail)
    notes.write()
    assert not notes
    assert "1 nodes are here" in caplog.text


def test_over_the_socket_it_is_written_a_moment_later(site_url: str) -> None:
    node, token = make_node("loco", state=Node.State.ONLINE, last_seen=timezone.now() - AGO)
    before = timezone.now()
    body = protocol.encode_message(protocol.Poll(hardware=HARDWARE, wait_seconds=0))
    assert httpx.post(f"{site_url}{ROOT}/poll", content=body, headers=bearer(token), timeout=30).status_code == 200
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        (row,) = rows(node)
        if row.last_seen is not None and row.last_seen >= before:
            return
        time.sleep(0.1)
    pytest.fail("nothing was written")
