"""Queues a notice for each subscriber in the outbox, in the transaction of its cause; a worker sends it.

Events of nodes and entries cause notices (`notify_about_events`); the morning report is queued directly.
A notice is sent once, or twice if the worker dies while sending.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils import timezone

from leaderboard import outbox, permissions
from leaderboard.models import Entry, OutboxMessage, Subscription
from leaderboard.notifications import email_links
from leaderboard.notifications.channels import CHANNELS
from leaderboard.notifications.message import DeliveryError, Message
from leaderboard.notifications.topics import TOPICS, is_waiting_for_approval
from leaderboard.rankings.confirmations import RECORD_EVENT
from scheduler.models import Event, Node
from scheduler.node_health import FAILING_EVENT
from scheduler.pool import OFFLINE_EVENT

KIND = "notice"
MAX_PER_DAY = 30
"""Notices per topic and subscriber; further ones are dropped."""
MAX_AGE = timedelta(days=1)
MAX_ATTEMPTS = 12
"""Attempts with exponential backoff, over some hours. The subscription is then stopped until its owner resumes it."""


def notify_about_events(events: Sequence[Event]) -> None:
    """Listener of Events. An Event says that its target changed; the target's row says how."""
    nodes = [event for event in events if event.target_kind == "node" and event.kind in (OFFLINE_EVENT, FAILING_EVENT)]
    lost_states = [Node.State.OFFLINE, Node.State.FAILING]
    changed = Node.objects.filter(pk__in={event.target_id for event in nodes}, state__in=lost_states)
    lost = set(changed.values_list("pk", flat=True))
    for event in nodes:
        if event.target_id in lost:
            notify_subscribers("node", event.pk)
    for event in events:
        if event.target_kind == "entry" and event.kind == RECORD_EVENT:
            notify_subscribers("record", event.target_id)
    entries = {event.target_id for event in events if event.target_kind == "entry"}
    for entry in Entry.objects.proposed().filter(pk__in=entries):
        if is_waiting_for_approval(entry):
            notify_subscribers("approval", f"{entry.pk}.{entry.smoke_job_id or 0}")  # once for each smoke test


def notify_subscribers(topic: str, about: str | int) -> int:
    """Queue a notice to all subscribers whom it concerns, once; return their number. Requires a transaction."""
    subject = TOPICS[topic].find_subject(str(about))
    if subject is None:
        return 0
    subscriptions = [one for one in Subscription.objects.listening() if topic in one.topics]
    permissions.load_roles([subscription.user for subscription in subscriptions])
    recent = OutboxMessage.objects.filter(kind=KIND, created_at__gt=timezone.now() - timedelta(days=1))
    keys = recent.filter(key__startswith=f"{KIND}:{topic}:").values_list("key", flat=True)
    counts = Counter(int(key.rpartition(":")[2]) for key in keys.iterator())
    recipients = [
        subscription
        for subscription in subscriptions
        if TOPICS[topic].is_relevant(subscription.user, subject) and counts[subscription.pk] < MAX_PER_DAY
    ]
    for subscription in recipients:
        enqueue_notice(topic, str(about), subscription)
    return len(recipients)


def enqueue_notice(topic: str, about: str, subscription: Subscription) -> OutboxMessage:
    payload = {"topic": topic, "about": about, "subscription": subscription.pk}
    return outbox.enqueue_once(KIND, f"{KIND}:{topic}:{about}:{subscription.pk}", payload)


def send_notice(queued: OutboxMessage) -> Mapping[str, Any]:
    """Handler of `KIND`."""
    topic, about = queued.payload["topic"], queued.payload["about"]
    subscription = Subscription.objects.select_related("user").filter(pk=queued.payload["subscription"]).first()
    message = compose_notice(topic, about, subscription)
    if subscription is None or message is None or timezone.now() - queued.created_at > MAX_AGE:
        return {"sent": False}
    try:
        CHANNELS[subscription.kind].send(message, subscription)
    except DeliveryError as error:
        if not error.is_permanent and queued.attempts < MAX_ATTEMPTS:
            raise outbox.RetryLater(str(error)) from error
        Subscription.objects.filter(pk=subscription.pk).update(stopped_at=timezone.now(), problem=str(error)[:300])
        raise outbox.PermanentError(str(error)) from error
    Subscription.objects.filter(pk=subscription.pk).update(sent_at=timezone.now(), problem="")
    return {"sent": True}


def compose_notice(topic: str, about: str, subscription: Subscription | None) -> Message | None:
    """Return the notice as of now; None if it is obsolete or the subscription has ended."""
    if subscription is None:
        return None
    if topic == "confirm":
        return None if subscription.confirmed_at else compose_confirmation(subscription)
    if topic == "trial":
        line = "This is a test. Notices arrive here."
        return Message(f"A notice from {settings.SITE_NAME}", (line,), settings.SITE_URL + reverse("notices"))
    is_active = topic in subscription.topics and Subscription.objects.listening().filter(pk=subscription.pk).exists()
    subject = TOPICS[topic].find_subject(about)
    if not is_active or subject is None or not TOPICS[topic].is_relevant(subscription.user, subject):
        return None
    return TOPICS[topic].compose(subject)


def compose_confirmation(subscription: Subscription) -> Message:
    request = f"{subscription.user.get_username()} has asked {settings.SITE_NAME} to send notices to this address."
    return Message(
        title=f"Notices from {settings.SITE_NAME}?",
        lines=(request, "To confirm, follow the link within three days. To decline, ignore this e-mail."),
        url=email_links.build_link(subscription, "confirm"),
    )
