"""Delivery of notices over real sockets: email, chats through apprise, and their failures."""

from __future__ import annotations

import base64
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
from tests.support.mail_server import ChatServer, MailServer

pytestmark = [pytest.mark.processes, pytest.mark.django_db]

DISCORD = "https://discord.com/api/webhooks/123456789012345678/" + "a1-_" * 17
SLACK = "https://hooks.slack.com/services/T0000000A/B0000000B/abcdefghijklmnopqrstuvwx"
NOTICE = Message(
    title="A record: *bold* @everyone",
    lines=("Its author writes <!channel> and [click](http://evil.example).", "It saves 5 %."),
    url="http://127.0.0.1:8000/entries/7/",
    files=(
        Attachment("run-7.png", "image/png", "http://127.0.0.1:8000/runs/7/curve.png", b"\x89PNG picture"),
        Attachment("run-7.csv", "text/csv", "http://127.0.0.1:8000/runs/7/curve.csv", b"step\n1\n"),
    ),
)


@pytest.fixture(autouse=True)
def _composed_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the composed record notice by a fixed one."""
    monkeypatch.setattr(TOPICS["record"], "find_subject", lambda about: about)
    monkeypatch.setattr(TOPICS["record"], "compose", lambda subject: NOTICE)


@pytest.fixture
def chat_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    with mail_server.run_chat_server() as server:
        monkeypatch.setattr(NotifyDiscord, "notify_url", f"{server.url}/api/webhooks")
        monkeypatch.setattr(NotifyDiscord, "request_rate_per_sec", 0)
        monkeypatch.setattr(NotifySlack, "webhook_url", f"{server.url}/services")
        monkeypatch.setattr(NotifySlack, "request_rate_per_sec", 0)
        yield server


def create_subscription(kind: str, address: str, **fields: Any) -> Subscription:
    user, _ = User.objects.get_or_create(username="vera")
    values = {"topics": ["record"], "confirmed_at": timezone.now(), **fields}
    return Subscription.objects.create(user=user, kind=kind, address=address, **values)


def send_notice(about: int = 7) -> OutboxMessage:
    """Enqueue the notice, process the outbox and return its message."""
    assert delivery.notify_subscribers("record", about) == 1
    outbox.process_due()
    return OutboxMessage.objects.get(key__startswith=f"notice:record:{about}:")


def test_email_notice_has_text_files_and_unsubscribe_link(mail: MailServer) -> None:
    subscription = create_subscription("email", "vera@example.net")
    assert send_notice().result == {"sent": True}
    (email,) = mail.emails
    assert (email.sender, email.receivers) == ("train@example.org", ["vera@example.net"])
    assert email.message["Subject"] == NOTICE.title
    assert "It saves 5 %." in email.text
    assert NOTICE.url in email.text
    assert "/notices/stop/" in email.text
    token = email.text.partition("/notices/stop/")[2]
    content = base64.urlsafe_b64decode(token.partition(":")[0] + "==").decode()
    assert "@" not in content, "links are written to access logs"
    assert email.files == {file.name: file.contents for file in NOTICE.files}
    subscription.refresh_from_db()
    assert subscription.sent_at


def test_discord_notice_escapes_mentions_and_has_files(chat_server: ChatServer) -> None:
    create_subscription("discord", DISCORD)
    assert send_notice().result == {"sent": True}
    post = chat_server.posts[0]
    assert post.path.startswith("/api/webhooks/123456789012345678/" + "a1-_" * 17)
    text = post.json["content"]
    assert "**A record\\: \\*bold\\* @\u200beveryone**" in text
    assert "\\[click\\]\\(http" in text
    assert text.rstrip().endswith(NOTICE.url)
    files = b"".join(file_post.body for file_post in chat_server.posts[1:])
    assert b"\x89PNG picture" in files
    assert b'filename="run-7.csv"' in files
    assert b"everyone" not in files or b"@\\u200beveryone" in files


def test_notice_to_unavailable_service_is_retried_until_its_subscription_is_stopped(chat_server: ChatServer) -> None:
    subscription = create_subscription("discord", DISCORD)
    chat_server.status = 503
    message = send_notice()
    assert (message.state, message.problem) == ("pending", "The service did not accept the message.")
    chat_server.status = 204
    OutboxMessage.objects.update(not_before=timezone.now())
    outbox.process_due()
    message.refresh_from_db()
    subscription.refresh_from_db()
    assert (message.state, subscription.stopped_at) == ("done", None)
    chat_server.status = 500
    message = send_notice(8)
    OutboxMessage.objects.filter(pk=message.pk).update(attempts=delivery.MAX_ATTEMPTS - 1, not_before=timezone.now())
    outbox.process_due()
    subscription.refresh_from_db()
    assert subscription.stopped_at


def test_notice_that_is_old_or_of_an_ended_subscription_is_not_sent(chat_server: ChatServer) -> None:
    subscription = create_subscription("discord", DISCORD)
    delivery.notify_subscribers("record", 6)
    OutboxMessage.objects.update(created_at=timezone.now() - timedelta(days=2))
    outbox.process_due()
    delivery.notify_subscribers("record", 7)
    subscription.topics = []
    subscription.save()
    outbox.process_due()
    delivery.notify_subscribers("record", 8)
    subscription.delete()
    outbox.process_due()
    assert chat_server.posts == []


@pytest.mark.parametrize(("kind", "address"), [("discord", DISCORD), ("slack", SLACK)])
def test_subscription_of_missing_address_is_stopped(
    chat_server: ChatServer, kind: str, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    subscription = create_subscription(kind, address)
    chat_server.status = 404
    with caplog.at_level(logging.DEBUG):
        assert send_notice().state == "failed"
    subscription.refresh_from_db()
    assert subscription.stopped_at
    assert subscription.problem
    assert delivery.notify_subscribers("record", 9) == 0
    assert "a1-_" * 17 not in caplog.text
    assert "abcdefghijklmnopqrstuvwx" not in caplog.text


@pytest.mark.parametrize(
    "address",
    ['"x,attacker@example.org,victim@example.com,y"@example.org', '"a b"@example.org', '"a;b"@example.org', "a@b, c@d"],
)
def test_email_address_that_apprise_would_split_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"\.$"):
        CHANNELS["email"].clean_address(address)


@pytest.mark.parametrize(
    "address", ["", "https://evil.example/api/webhooks/123456789012345678/" + "a" * 68, "discord://x/y"]
)
def test_chat_address_of_other_host_is_refused(address: str) -> None:
    for channel in (CHANNELS["discord"], CHANNELS["slack"]):
        with pytest.raises(ValueError, match="copy it from there"):
            channel.clean_address(address)
    assert CHANNELS["discord"].clean_address(f" {DISCORD.replace('discord.com', 'ptb.discord.com')}/ ") == DISCORD
    assert CHANNELS["slack"].clean_address(SLACK) == SLACK
