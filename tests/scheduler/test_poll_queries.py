"""The hand-written SQL of the pool gives the same results as the ORM."""

from __future__ import annotations

from datetime import time

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from scheduler import node_tokens, poll_queries
from scheduler.models import Lease, Node, Window
from tests.support.pool import HARDWARE, Agent, create_job, create_node

pytestmark = [pytest.mark.sql, pytest.mark.django_db]


def find_node(node: Node) -> Node:
    assert node.token_hash
    row = poll_queries.find_node(node.token_hash)
    assert row
    return row


def test_node_of_token_has_every_column_and_its_lease(agent: Agent) -> None:
    create_node("other")
    create_job()
    assert agent.request_action().action == "job"
    node = Node.objects.exclude(name="other").get()
    row = find_node(node)
    assert row.get_deferred_fields() == set()
    assert {name: value for name, value in vars(row).items() if name in vars(node) and name != "_state"} == {
        name: value for name, value in vars(node).items() if name != "_state"
    }
    assert vars(row)["has_lease"]
    Lease.objects.update(state=Lease.State.FINISHED)
    assert not vars(find_node(node))["has_lease"]


def test_node_of_unknown_token_is_none() -> None:
    assert poll_queries.find_node(node_tokens.hash_token("unknown")) is None


def test_lease_has_every_column_with_its_node_and_job(
    agent: Agent, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    create_job()
    lease_id = agent.request_action().lease.lease  # type: ignore[union-attr]
    expected = Lease.objects.select_related("node", "job").get(pk=lease_id)

    with django_assert_num_queries(3):
        lease = poll_queries.find_lease(lease_id)
        assert lease is not None
        rows = (lease, lease.node, lease.job)

    for row, other in zip(rows, (expected, expected.node, expected.job), strict=True):
        assert row.get_deferred_fields() == set()
        names = [field.attname for field in other._meta.concrete_fields]
        assert [getattr(row, name) for name in names] == [getattr(other, name) for name in names]


def test_lease_of_unknown_id_is_none() -> None:
    assert poll_queries.find_lease(2**62) is None
    assert poll_queries.find_lease(2**63) is None


def test_windows_are_loaded_only_for_nodes_lent_in_windows() -> None:
    (node, _), (other, _) = create_node("loco"), create_node("other")
    for day in (3, 1):
        Window.objects.create(node=node, weekday=day, start=time(8), end=time(17, 30))
    Window.objects.create(node=other, weekday=0, start=time(0), end=time(0))
    assert poll_queries.load_windows(node) == []
    node.available = Node.Available.WINDOWS
    loaded = [(window.weekday, window.start, window.end) for window in poll_queries.load_windows(node)]
    assert loaded == [(1, time(8), time(17, 30)), (3, time(8), time(17, 30))]


def test_last_seen_update_of_a_deleted_node_changes_nothing_else() -> None:
    (node, _), (deleted, _) = create_node("loco"), create_node("gone")
    now = timezone.now()
    for changed in (node, deleted):
        changed.last_seen, changed.hardware, changed.health = now, HARDWARE.model_dump(mode="json"), {"trouble": "ü"}
    Node.objects.filter(pk=deleted.pk).delete()
    poll_queries.update_last_seen([deleted, node])
    (row,) = Node.objects.all()
    assert (row.last_seen, row.hardware, row.health) == (now, node.hardware, {"trouble": "ü"})
