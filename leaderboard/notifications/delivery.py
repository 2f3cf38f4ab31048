"""Queues a notice for each subscriber in the outbox, in the transaction of its cause; a worker sends it.

A notice is sent once, or twice if the worker dies while sending. Webhooks carry the delivery id.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.db.models import Q
from django.utils import timezone

from leaderboard import outbox
from leaderboard.models import Effect, Subscription
from leaderboard.notifications import system_messages
from leaderboard.notifications.channels import CHANNELS
from leaderboard.notifications.delivery_errors import DeliveryError
from leaderboard.notifications.message import Message
from leaderboard.notifications.topics import TOPICS

KIND = "notice"
MAX_PER_DAY = 30
"""Notices per topic and subscriber; further ones are dropped."""
MAX_AGE = timedelta(days=1)
MAX_ATTEMPTS = 12
"""With exponential backoff, over some hours. Then the subscription is stopped until its owner resumes it."""


def notify_subscribers(topic: str, about: str | int) -> int:
    """Queue a notice to all subscribers whom it concerns, once; return their number. Requires a transaction."""
    recipients = [
        subscription
        for subscription in Subscription.objects.listening()
        if topic in subscription.topics
        and TOPICS[topic].is_relevant(subscription.user, str(about))
        and not is_over_daily_limit(topic, subscription)
    ]
    for subscription in recipients:
        enqueue_notice(topic, str(about), subscription)
    return len(recipients)


def enqueue_notice(topic: str, about: str, subscription: Subscription) -> Effect:
    payload = {"topic": topic, "about": about, "subscription": subscription.pk}
    return outbox.enqueue_once(KIND, f"{KIND}:{topic}:{about}:{subscription.pk}", payload)


def is_over_daily_limit(topic: str, subscription: Subscription) -> bool:
    recent = Q(created_at__gt=timezone.now() - timedelta(days=1), key__endswith=f":{subscription.pk}")
    return Effect.objects.filter(recent, key__startswith=f"{KIND}:{topic}:").count() >= MAX_PER_DAY


def send_notice(effect: Effect) -> Mapping[str, Any]:
    """Handler of `KIND`."""
    topic, about = effect.payload["topic"], effect.payload["about"]
    subscription = Subscription.objects.select_related("user").filter(pk=effect.payload["subscription"]).first()
    message = compose_notice(topic, about, subscription)
    if subscription is None or message is None or timezone.now() - effect.created_at > MAX_AGE:
        return {"sent": False}
    try:
        CHANNELS[subscription.kind].send(message, subscription, effect.pk)
    except DeliveryError as error:
        if not error.is_permanent and effect.attempts < MAX_ATTEMPTS:
            raise outbox.RetryLater(str(error)) from error
        Subscription.objects.filter(pk=subscription.pk).update(stopped_at=timezone.now(), problem=str(error)[:300])
        raise outbox.PermanentError(str(error)) from error
    Subscription.objects.filter(pk=subscription.pk).update(sent_at=timezone.now(), problem="")
    return {"sent": True}


def compose_notice(topic: str, about: str, subscription: Subscription | None) -> Message | None:
    """Return the notice as of now; None if it is obsolete or the subscription has ended."""
    if subscription is None:
        return None
    if topic in system_messages.SYSTEM_MESSAGES:
        return system_messages.SYSTEM_MESSAGES[topic](subscription)
    is_active = topic in subscription.topics and Subscription.objects.listening().filter(pk=subscription.pk).exists()
    if not is_active or not TOPICS[topic].is_relevant(subscription.user, about):
        return None
    return TOPICS[topic].compose(about)
