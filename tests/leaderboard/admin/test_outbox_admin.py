"""The admin shows what GitHub told and what the site does outside of itself, and has it tried again."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client

from leaderboard import outbox
from leaderboard.integrations.github import deliveries
from leaderboard.models import Delivery, Installation, OutboxMessage
from scheduler.models import Event


@pytest.fixture
def mara(client: Client, maintainer: User) -> Client:
    client.force_login(maintainer)
    return client


def do_again(client: Client, address: str, number: int) -> None:
    answer = client.post(address, {"action": "again", "_selected_action": [number]}, follow=True)
    assert answer.status_code == 200


def test_an_effect_that_was_refused_is_asked_for_again(mara: Client) -> None:
    made = outbox.enqueue("github.comment", "github.comment:1", {"pull": 1})
    OutboxMessage.objects.update(state=OutboxMessage.State.FAILED, problem="The App is not installed.")
    assert "The App is not installed." in mara.get("/admin/leaderboard/outboxmessage/").content.decode()
    assert mara.get(f"/admin/leaderboard/outboxmessage/{made.pk}/change/").status_code == 200
    do_again(mara, "/admin/leaderboard/outboxmessage/", made.pk)
    made.refresh_from_db()
    assert (made.state, made.problem) == ("pending", "")
    assert Event.objects.about(made).get().actor == "mara"


def test_a_delivery_is_read_again_while_its_content_is_there(mara: Client) -> None:
    told = {"action": "created", "installation": {"id": 5, "account": {"login": "trains"}}}
    kept = deliveries.store_delivery(str(uuid4()), "installation", b"1", told)
    assert kept
    deliveries.process_due()
    Installation.objects.all().delete()
    do_again(mara, "/admin/leaderboard/delivery/", kept.pk)
    assert deliveries.process_due() == 1
    assert "trains" in mara.get("/admin/leaderboard/installation/").content.decode()
    Delivery.objects.update(payload={})
    do_again(mara, "/admin/leaderboard/delivery/", kept.pk)
    assert Delivery.objects.get().state == Delivery.State.DONE


def test_nobody_writes_these_rows_by_hand(mara: Client) -> None:
    for name in ("outboxmessage", "delivery", "installation"):
        assert mara.get(f"/admin/leaderboard/{name}/add/").status_code == 403
