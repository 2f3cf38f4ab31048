"""Outbox messages in the admin, and their retry action."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from leaderboard import outbox
from leaderboard.integrations.github import deliveries
from leaderboard.models import Installation, OutboxMessage
from scheduler.models import Event


@pytest.fixture
def maintainer_client(client: Client, maintainer: User) -> Client:
    client.force_login(maintainer)
    return client


def run_retry_action(client: Client, address: str, number: int) -> None:
    response = client.post(address, {"action": "again", "_selected_action": [number]}, follow=True)
    assert response.status_code == 200


def test_retry_action_requeues_failed_outbox_message(maintainer_client: Client) -> None:
    message = outbox.enqueue("github.comment", "github.comment:1", {"pull": 1})
    OutboxMessage.objects.update(state=OutboxMessage.State.FAILED, problem="The App is not installed.")
    assert "The App is not installed." in maintainer_client.get("/admin/leaderboard/outboxmessage/").content.decode()
    assert maintainer_client.get(f"/admin/leaderboard/outboxmessage/{message.pk}/change/").status_code == 200
    run_retry_action(maintainer_client, "/admin/leaderboard/outboxmessage/", message.pk)
    message.refresh_from_db()
    assert (message.state, message.problem) == ("pending", "")
    assert Event.objects.about(message).get().actor == "mara"


def test_retry_action_leaves_sent_notice(maintainer_client: Client) -> None:
    message = outbox.enqueue("notice", "notice:record:1:1", {})
    OutboxMessage.objects.update(state=OutboxMessage.State.DONE)
    run_retry_action(maintainer_client, "/admin/leaderboard/outboxmessage/", message.pk)
    message.refresh_from_db()
    assert message.state == OutboxMessage.State.DONE


def test_retry_action_requeues_delivery_with_payload_only(maintainer_client: Client) -> None:
    payload = {"action": "created", "installation": {"id": 5, "account": {"login": "trains"}}}
    message = deliveries.store_delivery("installation", b"1", payload)
    assert message
    outbox.process_message(message.pk)
    Installation.objects.all().delete()
    run_retry_action(maintainer_client, "/admin/leaderboard/outboxmessage/", message.pk)
    outbox.process_message(message.pk)
    assert "trains" in maintainer_client.get("/admin/leaderboard/installation/").content.decode()
    OutboxMessage.objects.update(payload={})
    run_retry_action(maintainer_client, "/admin/leaderboard/outboxmessage/", message.pk)
    assert OutboxMessage.objects.get().state == OutboxMessage.State.DONE


def test_outbox_and_installation_rows_cannot_be_added(maintainer_client: Client) -> None:
    for name in ("outboxmessage", "installation"):
        assert maintainer_client.get(f"/admin/leaderboard/{name}/add/").status_code == 403
