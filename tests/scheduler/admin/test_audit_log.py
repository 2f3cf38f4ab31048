"""The audit log in the admin: filters by actor, target and day."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import User
from django.test import Client

from scheduler.models import Event, Node, Sponsor


@pytest.fixture
def logged_node(db: None) -> Node:
    node = Node.objects.create(name="cellar")
    Event.record("mara", node, "cellar is trusted.")
    Event.record("site", node, "cellar went offline.")
    old_event = Event.record("node:cellar", Node.objects.create(name="attic"), "attic joined.")
    Event.objects.filter(pk=old_event.pk).update(at=datetime(2026, 2, 3, 12, tzinfo=UTC))
    return node


def list_shown_messages(client: Client, query: str = "") -> list[str]:
    page = client.get(f"/admin/scheduler/event/?{query}").content.decode()
    return [
        event.sentence for event in Event.objects.order_by("-at", "-pk") if f'-sentence">{event.sentence}</td>' in page
    ]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("q=MARA", ["cellar is trusted."]),
        ("q=offline", ["cellar went offline."]),
        ("at__year=2026&at__month=2&at__day=3", ["attic joined."]),
        ("people=on", ["cellar is trusted."]),
        ("q=node", ["cellar went offline.", "cellar is trusted.", "attic joined."]),
        ("q=run", []),
        ("q=node+9999999999999999999999", ["cellar went offline.", "cellar is trusted.", "attic joined."]),
    ],
)
def test_audit_log_search_filters_events(
    admin_client: Client, logged_node: Node, query: str, expected: list[str]
) -> None:
    assert list_shown_messages(admin_client, query) == expected


def test_admin_deletion_records_event_and_none_is_in_bulk(admin_client: Client) -> None:
    sponsor = Sponsor.objects.create(user=User.objects.create_user("lena"), name="Lena")
    admin_client.post(f"/admin/scheduler/sponsor/{sponsor.pk}/delete/", {"post": "yes"})
    event = Event.objects.get(actor="admin")
    assert (event.target_kind, event.sentence) == ("sponsor", "Deleted Lena.")
    for page in ("leaderboard/track", "scheduler/jointoken", "auth/user"):
        assert "delete_selected" not in admin_client.get(f"/admin/{page}/").content.decode()
