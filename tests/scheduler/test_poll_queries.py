"""The hand-written SQL of polls returns and writes what the ORM would."""

from __future__ import annotations

from datetime import time

import pytest
from django.utils import timezone

from scheduler import node_tokens, poll_queries
from scheduler.models import Lease, Node, Window
from tests.support.pool import HARDWARE, Agent, make_job, make_node

pytestmark = pytest.mark.django_db


def find_node(node: Node) -> Node:
    assert node.token_hash
    found = poll_queries.find_node(node.token_hash)
    assert found
    return found


def test_node_of_token_has_every_column_and_its_lease(agent: Agent) -> None:
    make_node("other")
    make_job()
    assert agent.ask().action == "job"
    node = Node.objects.exclude(name="other").get()
    found = find_node(node)
    assert found.get_deferred_fields() == set()
    assert {name: value for name, value in vars(found).items() if name in vars(node) and name != "_state"} == {
        name: value for name, value in vars(node).items() if name != "_state"
    }
    assert vars(found)["has_lease"]
    Lease.objects.update(state=Lease.State.FINISHED)
    assert not vars(find_node(node))["has_lease"]


def test_node_of_unknown_token_is_none() -> None:
    assert poll_queries.find_node(node_tokens.hash_token("unknown")) is None


def test_windows_are_loaded_only_for_nodes_lent_in_windows() -> None:
    (node, _), (other, _) = make_node("loco"), make_node("other")
    for day in (3, 1):
        Window.objects.create(node=node, weekday=day, start=time(8), end=time(17, 30))
    Window.objects.create(node=other, weekday=0, start=time(0), end=time(0))
    assert poll_queries.load_windows(node) == []
    node.available = Node.Available.WINDOWS
    loaded = [(window.weekday, window.start, window.end) for window in poll_queries.load_windows(node)]
    assert loaded == [(1, time(8), time(17, 30)), (3, time(8), time(17, 30))]


def test_last_seen_update_of_a_deleted_node_changes_nothing_else() -> None:
    (node, _), (gone, _) = make_node("loco"), make_node("gone")
    now = timezone.now()
    for one in (node, gone):
        one.last_seen, one.hardware, one.health = now, HARDWARE.model_dump(mode="json"), {"trouble": "ü"}
    Node.objects.filter(pk=gone.pk).delete()
    poll_queries.update_last_seen([gone, node])
    (row,) = Node.objects.all()
    assert (row.last_seen, row.hardware, row.health) == (now, node.hardware, {"trouble": "ü"})
