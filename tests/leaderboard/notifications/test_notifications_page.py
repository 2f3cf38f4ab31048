"""The subscriptions page: adding, changing, confirming and ending subscriptions."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from leaderboard import outbox
from leaderboard.models import OutboxMessage, Subscription
from leaderboard.notifications import subscriptions
from tests.support.mail_server import MailServer

pytestmark = [pytest.mark.processes, pytest.mark.django_db]
PAGE = "/accounts/notices/"
DISCORD = "https://discord.com/api/webhooks/123456789012345678/" + "s3cr" * 17


@pytest.fixture
def signed_in_user(client: Client) -> User:
    user = User.objects.create_user("vera", password="vera")
    client.force_login(user)
    return user


def post_subscription_form(client: Client, kind: str, address: str, *topics: str) -> str:
    response = client.post(PAGE, {"kind": kind, "address": address, "topics": topics or ("record",)}, follow=True)
    return str(response.content.decode())


def test_subscription_with_invalid_address_is_refused(client: Client, signed_in_user: User) -> None:
    assert "A Discord address looks like" in post_subscription_form(client, "discord", "https://evil.example/")
    assert "Select a valid choice" in post_subscription_form(client, "email", "vera@example.net"), (
        "this site sends no email"
    )
    assert "Select a valid choice" in post_subscription_form(client, "discord", DISCORD, "approval"), (
        "only maintainers may choose the topic"
    )
    post_subscription_form(client, "discord", DISCORD)
    assert "This address is subscribed already" in post_subscription_form(client, "discord", DISCORD)
    for number in range(1, subscriptions.MAX_SUBSCRIPTIONS):
        post_subscription_form(client, "discord", f"{DISCORD[:-1]}{number}")
    assert "You have 10 subscriptions" in post_subscription_form(client, "discord", f"{DISCORD[:-2]}xx")
    assert Subscription.objects.count() == subscriptions.MAX_SUBSCRIPTIONS


def test_subscription_can_be_changed_tested_and_ended_by_its_user_only(client: Client, signed_in_user: User) -> None:
    assert Client().get(PAGE).status_code == 302
    other = Subscription.objects.create(user=User.objects.create(username="uma"), kind="discord", address=DISCORD)
    for action in ("topics", "trial", "resume", "end"):
        assert client.post(f"{PAGE}{other.pk}/{action}/").status_code == 404
    other.delete()
    post_subscription_form(client, "discord", DISCORD)
    subscription = Subscription.objects.get()
    client.post(f"{PAGE}{subscription.pk}/topics/", {"topics": ["node", "approval", "nonsense"]})
    subscription.refresh_from_db()
    assert subscription.topics == ["node"]
    client.post(f"{PAGE}{subscription.pk}/trial/")
    assert OutboxMessage.objects.get().payload["topic"] == "trial"
    assert client.post(f"{PAGE}{subscription.pk}/nonsense/").status_code == 404
    client.post(f"{PAGE}{subscription.pk}/end/")
    assert not Subscription.objects.exists()


@pytest.mark.parametrize("action", ["trial", "resume"])
def test_test_notice_over_daily_limit_shows_a_message(client: Client, signed_in_user: User, action: str) -> None:
    post_subscription_form(client, "discord", DISCORD)
    address = f"{PAGE}{Subscription.objects.get().pk}/{action}/"
    for _ in range(subscriptions.MAX_TEST_NOTICES):
        assert "A test message is on its way." in client.post(address, follow=True).content.decode()
    Subscription.objects.update(stopped_at="2026-03-01T00:00Z")
    page = client.post(address, follow=True).content.decode()
    assert "Too many test messages today. Try again tomorrow." in page
    assert "A test message is on its way." not in page
    assert OutboxMessage.objects.count() == subscriptions.MAX_TEST_NOTICES
    assert Subscription.objects.listening().exists() == (action == "resume")


def test_email_subscription_needs_confirmation_and_unsubscribes_by_link(
    client: Client, signed_in_user: User, mail: MailServer
) -> None:
    page = post_subscription_form(client, "email", "vera@example.net")
    assert "An e-mail has been sent there" in page
    assert "vera@" not in page
    assert not Subscription.objects.listening().exists()
    outbox.process_due()
    (email,) = mail.emails
    confirm, stop = (re.search(rf"/notices/{word}/\S+/", email.text) for word in ("confirm", "stop"))
    for forged in (confirm[0].replace("confirm", "stop"), confirm[0][:-3] + "xx/", "/notices/other/x/"):
        assert client.post(forged).status_code == 404
    reader = Client()
    assert "Nothing is sent until you confirm" in reader.get(confirm[0]).content.decode()
    assert not Subscription.objects.listening().exists(), "a GET request of a link scanner confirms nothing"
    assert "Notices are on" in reader.post(confirm[0]).content.decode()
    assert Subscription.objects.listening().count() == 1
    assert reader.post(stop[0]).status_code == 200
    assert not Subscription.objects.exists()
    assert reader.get(stop[0]).status_code == 404
