"""The last-seen times of polling nodes are saved for many nodes at once."""

from __future__ import annotations

import time
from datetime import timedelta

import httpx
import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from scheduler import last_seen
from scheduler.last_seen import LastSeenBuffer
from scheduler.models import Node
from scheduler.node_api import polls
from tests.support.pool import HARDWARE, ROOT, bearer, make_node
from trainer import protocol

AGO = timedelta(minutes=1)
FULLER = HARDWARE.model_copy(update={"disk_free_bytes": HARDWARE.disk_free_bytes - 1})


def online(name: str) -> Node:
    return make_node(name, state=Node.State.ONLINE, last_seen=timezone.now() - AGO)[0]


def ask(node: Node, buffer: LastSeenBuffer | None, **fields: object) -> None:
    polls.PollSession(node, protocol.Poll(**{"hardware": HARDWARE, **fields})).check(buffer)  # type: ignore[arg-type]


def rows(*nodes: Node) -> list[Node]:
    return [Node.objects.get(pk=node.pk) for node in nodes]


def test_buffer_when_flushed_updates_the_rows(db: None) -> None:
    buffer, silent, told = LastSeenBuffer(), online("silent"), online("told")
    before = timezone.now()
    ask(silent, buffer)
    ask(told, buffer, hardware=FULLER, health=protocol.Health(temperature_celsius=61))
    assert all(row.last_seen is not None and row.last_seen < before for row in rows(silent, told))
    buffer.flush()
    first, second = rows(silent, told)
    assert first.last_seen is not None
    assert first.last_seen >= before
    assert (first.hardware, first.health) == (HARDWARE.model_dump(mode="json"), {})
    assert second.hardware["disk_free_bytes"] == FULLER.disk_free_bytes
    assert second.health["temperature_celsius"] == 61
    assert not buffer


def test_poll_without_buffer_updates_the_row_at_once(db: None) -> None:
    node, before = online("loco"), timezone.now()
    ask(node, None, hardware=FULLER)
    (row,) = rows(node)
    assert row.last_seen is not None
    assert row.last_seen >= before
    assert row.hardware["disk_free_bytes"] == FULLER.disk_free_bytes


def test_poll_of_offline_node_updates_the_row_at_once(db: None) -> None:
    buffer, node, before = LastSeenBuffer(), make_node("loco", state=Node.State.OFFLINE)[0], timezone.now()
    ask(node, buffer, hardware=FULLER)
    (row,) = rows(node)
    assert (row.state, row.hardware) == (Node.State.ONLINE, FULLER.model_dump(mode="json"))
    assert row.last_seen is not None
    assert row.last_seen >= before


def test_waiting_poll_is_matched_by_hardware_not_yet_saved(db: None) -> None:
    node = online("loco")
    session = polls.PollSession(node, protocol.Poll(hardware=FULLER))
    session.check(LastSeenBuffer())
    session.check_again()
    assert session.node.hardware["disk_free_bytes"] == FULLER.disk_free_bytes


@pytest.mark.parametrize("count", [1, 20])
def test_flush_costs_a_fixed_number_of_queries(
    db: None, count: int, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    buffer, now = LastSeenBuffer(), timezone.now()
    nodes = [online(f"node-{number}") for number in range(count)]
    for node in reversed(nodes):
        node.last_seen = now
        buffer.add(node)
    with django_assert_num_queries(3):
        buffer.flush()
    assert {row.last_seen for row in rows(*nodes)} == {now}


def test_flush_that_fails_drops_the_nodes_and_logs(
    db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from django.db import OperationalError

    def fail(nodes: object) -> None:
        raise OperationalError("the disk is full")

    buffer = LastSeenBuffer()
    buffer.add(online("loco"))
    monkeypatch.setattr(last_seen, "update_last_seen", fail)
    buffer.flush()
    assert not buffer
    assert "of 1 nodes" in caplog.text


def test_poll_over_http_updates_the_row_a_moment_later(site_url: str) -> None:
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
