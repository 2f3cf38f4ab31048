"""Each subscriber chooses: where, what, and when to stop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from leaderboard import outbox
from leaderboard.models import OutboxMessage, Subscription
from leaderboard.notifications import subscriptions
from leaderboard.notifications.subscriptions import SubscriptionError
from tests.support import mail_server
from tests.support.mail_server import MailServer

pytestmark = pytest.mark.django_db
PAGE = "/accounts/notices/"
DISCORD = "https://discord.com/api/webhooks/123456789012345678/" + "s3cr" * 17


@pytest.fixture
def vera(client: Client) -> User:
    user = User.objects.create_user("vera", password="vera")
    client.force_login(user)
    return user


@pytest.fixture
def mail(settings: Any) -> Iterator[MailServer]:
    with mail_server.mail() as opened:
        settings.MAIL_URL = opened.url
        yield opened


def add(client: Client, kind: str, address: str, *topics: str) -> str:
    answer = client.post(PAGE, {"kind": kind, "address": address, "topics": topics or ("record",)}, follow=True)
    return str(answer.content.decode())


def test_it_is_for_people_who_have_signed_in(client: Client) -> None:
    assert client.get(PAGE).status_code == 302
    assert client.get("/accounts/login/").status_code == 200


def test_a_place_is_added_and_its_address_never_shown_again(client: Client, vera: User) -> None:
    said = add(client, "discord", DISCORD, "record", "morning")
    (one,) = Subscription.objects.all()
    assert (one.user, one.address, one.topics) == (vera, DISCORD, ["morning", "record"])
    assert one.confirmed_at
    assert "discord.com, webhook 123456789012345678" in said
    assert "s3cr" not in said


def test_a_webhooks_secret_is_shown_once(client: Client, vera: User) -> None:
    said = add(client, "webhook", "https://example.org/hook")
    secret = Subscription.objects.get().secret
    assert len(secret) > 40
    assert secret in said
    assert secret not in client.get(PAGE).content.decode()


def test_what_cannot_be_an_address_is_said_and_nothing_kept(client: Client, vera: User) -> None:
    assert "A Discord address looks like" in add(client, "discord", "https://evil.example/")
    assert "Select a valid choice" in add(client, "email", "vera@example.net"), "this site sends no letters"
    assert "Select a valid choice" in add(client, "discord", DISCORD, "approval"), "not hers to choose"
    add(client, "discord", DISCORD)
    assert "This address is subscribed already" in add(client, "discord", DISCORD)
    assert Subscription.objects.count() == 1


def test_other_topics_a_trial_and_the_end(client: Client, vera: User) -> None:
    add(client, "discord", DISCORD)
    one = Subscription.objects.get()
    client.post(f"{PAGE}{one.pk}/topics/", {"topics": ["node", "approval", "nonsense"]})
    one.refresh_from_db()
    assert one.topics == ["node"]
    client.post(f"{PAGE}{one.pk}/trial/")
    assert OutboxMessage.objects.get().payload["topic"] == "trial"
    assert client.post(f"{PAGE}{one.pk}/nonsense/").status_code == 404
    client.post(f"{PAGE}{one.pk}/end/")
    assert not Subscription.objects.exists()


def test_a_stopped_address_is_tried_again_when_its_owner_says_so(client: Client, vera: User) -> None:
    add(client, "discord", DISCORD)
    Subscription.objects.update(stopped_at="2026-03-01T00:00Z", problem="The address is not valid any more.")
    assert "The address is not valid any more." in client.get(PAGE).content.decode()
    client.post(f"{PAGE}{Subscription.objects.get().pk}/resume/")
    assert Subscription.objects.listening().count() == 1


def test_nobody_touches_what_is_somebody_elses(client: Client, vera: User) -> None:
    other = Subscription.objects.create(user=User.objects.create(username="uma"), kind="discord", address=DISCORD)
    for wish in ("topics", "trial", "resume", "end"):
        assert client.post(f"{PAGE}{other.pk}/{wish}/").status_code == 404
    assert "webhook 1234" not in client.get(PAGE).content.decode()


def test_an_e_mail_address_is_asked_first_and_can_stop_without_signing_in(
    client: Client, vera: User, mail: MailServer
) -> None:
    said = add(client, "email", "vera@example.net")
    assert "A letter has been sent there" in said
    assert "vera@" not in said
    assert not Subscription.objects.listening().exists()
    outbox.process_due()
    (letter,) = mail.letters
    confirm, stop = (re.search(rf"/notices/{word}/\S+/", letter.text) for word in ("confirm", "stop"))
    assert confirm
    assert stop
    reader = Client()
    assert "Nothing is sent until you say yes" in reader.get(confirm[0]).content.decode()
    assert not Subscription.objects.listening().exists(), "a mail program that follows links says nothing"
    assert "Notices come from now on" in reader.post(confirm[0]).content.decode()
    assert Subscription.objects.listening().count() == 1
    assert reader.post(stop[0]).status_code == 200
    assert not Subscription.objects.exists()
    assert reader.get(stop[0]).status_code == 404


def test_a_forged_or_swapped_link_is_nobodys(client: Client, vera: User, mail: MailServer) -> None:
    add(client, "email", "vera@example.net")
    outbox.process_due()
    confirm = re.search(r"/notices/confirm/\S+/", mail.letters[0].text)
    assert confirm
    assert client.post(confirm[0].replace("confirm", "stop")).status_code == 404
    assert client.post(confirm[0][:-3] + "xx/").status_code == 404
    assert client.post("/notices/other/x/").status_code == 404
    assert Subscription.objects.get().confirmed_at is None


def test_nobody_can_have_us_write_to_strangers_all_day(vera: User, mail: MailServer) -> None:
    for number in range(subscriptions.MAX_TEST_NOTICES):
        subscriptions.subscribe(vera, "email", f"{number}@example.net", ["record"])
    with pytest.raises(SubscriptionError, match="Too many test messages today"):
        subscriptions.subscribe(vera, "email", "one-more@example.net", ["record"])
    assert not subscriptions.send_test_notice(Subscription.objects.filter(user=vera).first())  # type: ignore[arg-type]


def test_nobody_has_more_places_than_he_can_look_after(vera: User) -> None:
    for number in range(subscriptions.MAX_SUBSCRIPTIONS):
        subscriptions.subscribe(vera, "webhook", f"https://example.org/{number}", ["record"])
    with pytest.raises(SubscriptionError, match="You have 10 subscriptions"):
        subscriptions.subscribe(vera, "webhook", "https://example.org/more", ["record"])


def test_the_admin_shows_no_addresses(admin_client: Client, vera: User) -> None:
    one = Subscription.objects.create(user=vera, kind="discord", address=DISCORD, secret="between us")
    for address in ("", f"{one.pk}/change/"):
        said = admin_client.get(f"/admin/leaderboard/subscription/{address}").content.decode()
        assert "vera" in said
        assert "s3cr" not in said
        assert "between us" not in said
