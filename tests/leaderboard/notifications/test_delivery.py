"""Notices over real sockets: letters by SMTP, chats through apprise, signed webhooks; and when one of them says no."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from apprise.plugins.discord import NotifyDiscord
from apprise.plugins.slack import NotifySlack
from django.contrib.auth.models import User
from django.utils import timezone

from leaderboard import outbox
from leaderboard.models import OutboxMessage, Subscription
from leaderboard.notifications import delivery
from leaderboard.notifications.channels import CHANNELS
from leaderboard.notifications.message import Attachment, Message
from leaderboard.notifications.topics import TOPICS
from tests.support import mail_server
from tests.support.mail_server import MailServer, Office

pytestmark = pytest.mark.django_db

DISCORD = "https://discord.com/api/webhooks/123456789012345678/" + "a1-_" * 17
SLACK = "https://hooks.slack.com/services/T0000000A/B0000000B/abcdefghijklmnopqrstuvwx"
NEWS = Message(
    title="A record: *bold* @everyone",
    lines=("Its author writes <!channel> and [click](http://evil.example).", "It saves 5 %."),
    url="http://127.0.0.1:8000/entries/7/",
    files=(
        Attachment("run-7.png", "image/png", "http://127.0.0.1:8000/runs/7/curve.png", b"\x89PNG picture"),
        Attachment("run-7.csv", "text/csv", "http://127.0.0.1:8000/runs/7/curve.csv", b"step\n1\n"),
    ),
    facts={"entry": 7},
)


@pytest.fixture(autouse=True)
def news(monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is to tell."""
    monkeypatch.setattr(TOPICS["record"], "compose", lambda about: NEWS)


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Office]:
    settings.NOTICES_TO_PRIVATE_HOSTS = True
    with mail_server.web() as opened:
        monkeypatch.setattr(NotifyDiscord, "notify_url", f"{opened.url}/api/webhooks")
        monkeypatch.setattr(NotifyDiscord, "request_rate_per_sec", 0)
        monkeypatch.setattr(NotifySlack, "webhook_url", f"{opened.url}/services")
        monkeypatch.setattr(NotifySlack, "request_rate_per_sec", 0)
        yield opened


@pytest.fixture
def mail(settings: Any) -> Iterator[MailServer]:
    with mail_server.mail() as opened:
        settings.MAIL_URL = opened.url
        yield opened


def subscribe(kind: str, address: str, **fields: Any) -> Subscription:
    user, _ = User.objects.get_or_create(username="vera")
    values = {"topics": ["record"], "confirmed_at": timezone.now(), **fields}
    return Subscription.objects.create(user=user, kind=kind, address=address, **values)


def send(about: int = 7) -> OutboxMessage:
    """Ask for the notice and let a worker come by."""
    assert delivery.notify_subscribers("record", about) == 1
    outbox.process_due()
    return OutboxMessage.objects.get(key__startswith=f"notice:record:{about}:")


def test_a_letter_arrives_with_the_picture_the_numbers_and_a_way_to_stop(mail: MailServer) -> None:
    subscription = subscribe("email", "vera@example.net")
    assert send().result == {"sent": True}
    (letter,) = mail.letters
    assert (letter.sender, letter.receivers) == ("train@example.org", ["vera@example.net"])
    assert letter.message["Subject"] == NEWS.title
    assert "It saves 5 %." in letter.text
    assert NEWS.url in letter.text
    assert "/notices/stop/" in letter.text
    assert letter.files == {file.name: file.contents for file in NEWS.files}
    subscription.refresh_from_db()
    assert subscription.sent_at


def test_a_discord_channel_gets_words_that_call_nobody_and_the_files(office: Office) -> None:
    subscribe("discord", DISCORD)
    assert send().result == {"sent": True}
    words = office.posts[0]
    assert words.path.startswith("/api/webhooks/123456789012345678/" + "a1-_" * 17)
    said = words.json["content"]
    assert "**A record\\: \\*bold\\* @\u200beveryone**" in said
    assert "\\[click\\]\\(http" in said
    assert said.rstrip().endswith(NEWS.url)
    files = b"".join(post.body for post in office.posts[1:])
    assert b"\x89PNG picture" in files
    assert b'filename="run-7.csv"' in files
    assert b"everyone" not in files or b"@\\u200beveryone" in files


def test_a_slack_channel_gets_words_that_call_nobody_and_links_to_the_files(office: Office) -> None:
    subscribe("slack", SLACK)
    assert send().result == {"sent": True}
    (post,) = office.posts
    assert post.path == "/services/T0000000A/B0000000B/abcdefghijklmnopqrstuvwx"
    assert b"<!channel>" not in post.body
    assert b"curve.png" in post.body
    assert b"entries/7/" in post.body


def test_a_webhook_is_signed_so_that_its_program_knows_who_speaks(office: Office) -> None:
    subscribe("webhook", f"{office.url}/hook?x=1", secret="between us")
    effect = send()
    (post,) = office.posts
    assert post.path == "/hook?x=1"
    at = post.headers["X-Daily-Train-Timestamp"]
    expected = hmac.new(b"between us", f"{at}.".encode() + post.body, hashlib.sha256).hexdigest()
    assert post.headers["X-Daily-Train-Signature-256"] == f"sha256={expected}"
    assert post.headers["X-Daily-Train-Delivery"] == str(effect.pk)
    assert post.headers["Host"] == office.url.removeprefix("http://")
    assert abs(timezone.now().timestamp() - int(at)) < 600
    assert post.json["version"] == 1
    assert post.json["title"] == NEWS.title
    assert post.json["facts"] == {"entry": 7}
    assert [file["name"] for file in post.json["files"]] == ["run-7.png", "run-7.csv"]


def test_the_same_notice_goes_out_once(office: Office) -> None:
    subscribe("webhook", office.url, secret="s")
    send()
    assert delivery.notify_subscribers("record", 7) == 1
    outbox.process_due()
    assert len(office.posts) == 1
    send(8)
    assert len(office.posts) == 2


def test_a_service_that_is_away_gets_it_later(office: Office) -> None:
    subscription = subscribe("webhook", office.url, secret="s")
    office.status = 503
    effect = send()
    assert (effect.state, effect.problem) == ("pending", "The address answered 503.")
    office.status = 204
    OutboxMessage.objects.update(not_before=timezone.now())
    outbox.process_due()
    effect.refresh_from_db()
    assert effect.state == "done"
    subscription.refresh_from_db()
    assert subscription.stopped_at is None


@pytest.mark.parametrize(("kind", "address"), [("webhook", ""), ("discord", DISCORD), ("slack", SLACK)])
def test_an_address_that_is_gone_is_left_alone_until_its_owner_comes(
    office: Office, kind: str, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    subscription = subscribe(kind, address or office.url, secret="s")
    office.status = 404
    with caplog.at_level(logging.DEBUG):
        assert send().state == "failed"
    subscription.refresh_from_db()
    assert subscription.stopped_at
    assert subscription.problem
    assert delivery.notify_subscribers("record", 9) == 0
    assert "a1-_" * 17 not in caplog.text
    assert "abcdefghijklmnopqrstuvwx" not in caplog.text


def test_after_hours_of_refusals_it_is_given_up(office: Office) -> None:
    subscription = subscribe("webhook", office.url, secret="s")
    office.status = 500
    effect = send()
    OutboxMessage.objects.filter(pk=effect.pk).update(attempts=delivery.MAX_ATTEMPTS - 1, not_before=timezone.now())
    outbox.process_due()
    subscription.refresh_from_db()
    assert subscription.stopped_at


def test_old_news_is_not_sent(office: Office) -> None:
    subscribe("webhook", office.url, secret="s")
    delivery.notify_subscribers("record", 7)
    OutboxMessage.objects.update(created_at=timezone.now() - timedelta(days=2))
    outbox.process_due()
    assert office.posts == []


def test_who_has_changed_his_mind_meanwhile_hears_nothing(office: Office) -> None:
    subscription = subscribe("webhook", office.url, secret="s")
    delivery.notify_subscribers("record", 7)
    subscription.topics = []
    subscription.save()
    outbox.process_due()
    delivery.notify_subscribers("record", 8)
    subscription.delete()
    outbox.process_due()
    assert office.posts == []


def test_noise_ends(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_PER_DAY", 2)
    subscribe("webhook", office.url, secret="s")
    assert [delivery.notify_subscribers("record", about) for about in range(4)] == [1, 1, 0, 0]


def test_a_webhook_follows_no_redirect_and_calls_no_neighbour(office: Office, settings: Any) -> None:
    subscribe("webhook", f"{office.url}/hook", secret="s")
    office.status, office.location = 302, f"{office.url}/elsewhere"
    assert send().problem == "The address answered 302."
    assert [post.path for post in office.posts] == ["/hook"]
    settings.NOTICES_TO_PRIVATE_HOSTS = False
    assert "not on the public internet" in send(8).problem
    assert len(office.posts) == 1


@pytest.mark.parametrize(
    "address",
    [
        *("", "x", "http://example.org/", "https://", "ftp://example.org", "https://me:secret@example.org/"),
        *("https://example.org:99999/", "https://[::1", "https://example.org/#x", "https://example.org/\x00"),
    ],
)
def test_what_cannot_be_a_webhook_is_refused_with_a_sentence(address: str) -> None:
    with pytest.raises(ValueError, match=r"\.$"):
        CHANNELS["webhook"].clean_address(address)


@pytest.mark.parametrize(
    "address", ["", "https://evil.example/api/webhooks/123456789012345678/" + "a" * 68, "discord://x/y"]
)
def test_only_discord_and_slack_are_called_discord_and_slack(address: str) -> None:
    for channel in (CHANNELS["discord"], CHANNELS["slack"]):
        with pytest.raises(ValueError, match="copy it from there"):
            channel.clean_address(address)
    assert CHANNELS["discord"].clean_address(f" {DISCORD.replace('discord.com', 'ptb.discord.com')}/ ") == DISCORD
    assert CHANNELS["slack"].clean_address(SLACK) == SLACK
