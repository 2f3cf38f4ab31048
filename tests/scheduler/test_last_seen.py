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
from tests.support.pool import HARDWARE, ROOT, build_bearer_header, create_node
from tests.support.waits import WAIT_SECONDS
from trainer import protocol

pytestmark = [pytest.mark.processes, pytest.mark.sql]

AGO = timedelta(minutes=1)
CHANGED_HARDWARE = HARDWARE.model_copy(update={"disk_free_bytes": HARDWARE.disk_free_bytes - 1})


def create_online_node(name: str) -> Node:
    return create_node(name, state=Node.State.ONLINE, last_seen=timezone.now() - AGO)[0]


def check_poll(node: Node, buffer: LastSeenBuffer | None, **fields: object) -> None:
    polls.PollSession(node, protocol.Poll(**{"hardware": HARDWARE, **fields})).check(buffer)  # type: ignore[arg-type]


def reload_nodes(*nodes: Node) -> list[Node]:
    return [Node.objects.get(pk=node.pk) for node in nodes]


def test_buffer_when_flushed_updates_the_rows(db: None) -> None:
    buffer, unchanged, changed = LastSeenBuffer(), create_online_node("unchanged"), create_online_node("changed")
    before = timezone.now()
    check_poll(unchanged, buffer)
    check_poll(changed, buffer, hardware=CHANGED_HARDWARE, health=protocol.Health(temperature_celsius=61))
    assert all(row.last_seen is not None and row.last_seen < before for row in reload_nodes(unchanged, changed))
    buffer.flush()
    first, second = reload_nodes(unchanged, changed)
    assert first.last_seen is not None
    assert first.last_seen >= before
    assert (first.hardware, first.health) == (HARDWARE.model_dump(mode="json"), {})
    assert second.hardware["disk_free_bytes"] == CHANGED_HARDWARE.disk_free_bytes
    assert second.health["temperature_celsius"] == 61
    assert not buffer


def test_poll_without_buffer_updates_the_row_at_once(db: None) -> None:
    node, before = create_online_node("loco"), timezone.now()
    check_poll(node, None, hardware=CHANGED_HARDWARE)
    (row,) = reload_nodes(node)
    assert row.last_seen is not None
    assert row.last_seen >= before
    assert row.hardware["disk_free_bytes"] == CHANGED_HARDWARE.disk_free_bytes


def test_poll_of_offline_node_updates_the_row_at_once(db: None) -> None:
    buffer, node, before = LastSeenBuffer(), create_node("loco", state=Node.State.OFFLINE)[0], timezone.now()
    check_poll(node, buffer, hardware=CHANGED_HARDWARE)
    (row,) = reload_nodes(node)
    assert (row.state, row.hardware) == (Node.State.ONLINE, CHANGED_HARDWARE.model_dump(mode="json"))
    assert row.last_seen is not None
    assert row.last_seen >= before


def test_waiting_poll_is_matched_by_hardware_not_yet_saved(db: None) -> None:
    node = create_online_node("loco")
    session = polls.PollSession(node, protocol.Poll(hardware=CHANGED_HARDWARE))
    session.check(LastSeenBuffer())
    session.check_again()
    assert session.node.hardware["disk_free_bytes"] == CHANGED_HARDWARE.disk_free_bytes


@pytest.mark.parametrize("count", [1, 20])
def test_flush_costs_a_fixed_number_of_queries(
    db: None, count: int, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    buffer, now = LastSeenBuffer(), timezone.now()
    nodes = [create_online_node(f"node-{number}") for number in range(count)]
    for node in reversed(nodes):
        node.last_seen = now
        buffer.add(node)
    with django_assert_num_queries(3):
        buffer.flush()
    assert {row.last_seen for row in reload_nodes(*nodes)} == {now}


def test_flush_that_fails_drops_the_nodes_and_logs(
    db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from django.db import OperationalError

    def fail(nodes: object) -> None:
        raise OperationalError("the disk is full")

    buffer = LastSeenBuffer()
    buffer.add(create_online_node("loco"))
    monkeypatch.setattr(last_seen, "update_last_seen", fail)
    buffer.flush()
    assert not buffer
    assert "of 1 nodes" in caplog.text


def test_poll_over_http_updates_the_row_a_moment_later(site_url: str) -> None:
    node, token = create_node("loco", state=Node.State.ONLINE, last_seen=timezone.now() - AGO)
    before = timezone.now()
    body = protocol.encode_message(protocol.Poll(hardware=HARDWARE, wait_seconds=0))
    headers = build_bearer_header(token)
    response = httpx.post(f"{site_url}{ROOT}/poll", content=body, headers=headers, timeout=WAIT_SECONDS)
    assert response.status_code == 200
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        (row,) = reload_nodes(node)
        if row.last_seen is not None and row.last_seen >= before:
            return
        time.sleep(0.1)
    pytest.fail(f"last_seen was not saved within {WAIT_SECONDS} s")
