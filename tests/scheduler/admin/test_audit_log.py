"""The audit log in the admin: filters by actor, target and day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from scheduler.models import Event, Node, Sponsor


@pytest.fixture
def admin_client(client: Client, db: None) -> Client:
    client.force_login(User.objects.create_superuser("mara"))
    return client


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


def test_audit_log_lists_all_events_newest_first(admin_client: Client, logged_node: Node) -> None:
    assert list_shown_messages(admin_client) == ["cellar went offline.", "cellar is trusted.", "attic joined."]


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


def test_audit_log_target_search_links_to_admin_page(admin_client: Client, logged_node: Node) -> None:
    assert list_shown_messages(admin_client, f"q=node+{logged_node.pk}") == [
        "cellar went offline.",
        "cellar is trusted.",
    ]
    assert (
        f'href="/admin/scheduler/node/{logged_node.pk}/change/"'
        in admin_client.get("/admin/scheduler/event/").content.decode()
    )


def test_audit_log_with_many_events_is_paginated(admin_client: Client, logged_node: Node) -> None:
    start = timezone.now() - timedelta(days=1)
    for number in range(120):
        Event(actor="site", target_kind="node", target_id=1, sentence=f"Event {number}.", at=start).save()
    assert len(list_shown_messages(admin_client, "q=site")) == 100
    assert len(list_shown_messages(admin_client, "q=site&p=2")) == 21


def test_audit_log_escapes_messages(admin_client: Client, logged_node: Node) -> None:
    Event.record("<b>eve</b>", logged_node, "<script>alert(1)</script>")
    page = admin_client.get("/admin/scheduler/event/").content.decode()
    assert "<script>alert" not in page
    assert "<b>eve" not in page


def test_admin_edit_records_event(admin_client: Client, db: None) -> None:
    owner = User.objects.create_user("lena")
    sponsor = Sponsor.objects.create(user=owner, name="Lena")
    admin_client.post(f"/admin/scheduler/sponsor/{sponsor.pk}/delete/", {"post": "yes"})
    event = Event.objects.get(actor="mara")
    assert (event.target_kind, event.sentence) == ("sponsor", "Deleted Lena.")


def test_admin_has_no_bulk_delete(admin_client: Client, logged_node: Node) -> None:
    for page in ("leaderboard/track", "scheduler/jointoken", "auth/user"):
        assert "delete_selected" not in admin_client.get(f"/admin/{page}/").content.decode()


def test_audit_log_is_read_only(admin_client: Client, logged_node: Node) -> None:
    event = Event.objects.first()
    assert event
    assert admin_client.get("/admin/scheduler/event/add/").status_code == 403
    admin_client.post(f"/admin/scheduler/event/{event.pk}/change/", {"sentence": "Nothing."})
    assert admin_client.post(f"/admin/scheduler/event/{event.pk}/delete/", {"post": "yes"}).status_code == 403
    event.refresh_from_db()
    assert event.sentence != "Nothing."
