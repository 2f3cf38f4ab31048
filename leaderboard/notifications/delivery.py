"""A notice is an Effect for each subscriber, asked for in the transaction of its cause, carried out by a worker.

At most once a process does not die while it sends; then perhaps twice: no chat tells us what it has. Webhooks and
letters carry the delivery's number.
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
"""Notices of one topic for one subscriber within a day: beyond, somebody makes noise, and the page says as much."""
MAX_AGE = timedelta(days=1)
MAX_ATTEMPTS = 12
"""Over some hours (`effects.FIRST_RETRY`, doubled each time). Then the address is left alone until its owner comes."""


def notify_subscribers(topic: str, about: str | int) -> int:
    """Ask for a notice to everybody whom it concerns, once for ever; return to how many. Bring a transaction."""
    listeners = [one for one in Subscription.objects.listening() if topic in one.topics]
    wanted = [
        one
        for one in listeners
        if TOPICS[topic].is_relevant(one.user, str(about)) and not is_over_daily_limit(topic, one)
    ]
    for subscription in wanted:
        enqueue_notice(topic, str(about), subscription)
    return len(wanted)


def enqueue_notice(topic: str, about: str, subscription: Subscription) -> Effect:
    payload = {"topic": topic, "about": about, "subscription": subscription.pk}
    return outbox.enqueue_once(KIND, f"{KIND}:{topic}:{about}:{subscription.pk}", payload)


def is_over_daily_limit(topic: str, subscription: Subscription) -> bool:
    lately = Q(created_at__gt=timezone.now() - timedelta(days=1), key__endswith=f":{subscription.pk}")
    return Effect.objects.filter(lately, key__startswith=f"{KIND}:{topic}:").count() >= MAX_PER_DAY


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
        if not error.for_good and effect.attempts < MAX_ATTEMPTS:
            raise outbox.RetryLater(str(error)) from error
        stop_subscription(subscription, str(error))
        raise outbox.PermanentError(str(error)) from error
    Subscription.objects.filter(pk=subscription.pk).update(sent_at=timezone.now(), problem="")
    return {"sent": True}


def compose_notice(topic: str, about: str, subscription: Subscription | None) -> Message | None:
    """Return the notice as it is by now; None where it is not wanted any more, or there is nothing to say."""
    if subscription is None:
        return None
    if topic in system_messages.SYSTEM_MESSAGES:
        return system_messages.SYSTEM_MESSAGES[topic](subscription)
    wanted = topic in subscription.topics and Subscription.objects.listening().filter(pk=subscription.pk).exists()
    if not wanted or not TOPICS[topic].is_relevant(subscription.user, about):
        return None
    return TOPICS[topic].compose(about)


def stop_subscription(subscription: Subscription, problem: str) -> None:
    """Leave an address alone that takes nothing; its owner reads why."""
    Subscription.objects.filter(pk=subscription.pk).update(stopped_at=timezone.now(), problem=problem[:300])
