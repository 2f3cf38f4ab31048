"""Creates, changes and deletes subscriptions."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import timedelta

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from leaderboard.models import OutboxMessage, Subscription
from leaderboard.notifications import delivery
from leaderboard.notifications.channels import CHANNELS
from leaderboard.notifications.topics import list_choosable_topics

MAX_SUBSCRIPTIONS = 10
"""Subscriptions per user."""
MAX_TEST_NOTICES = 5
"""Test notices and confirmation e-mails per user and day."""


DAILY_LIMIT_REACHED = "Too many test messages today. Try again tomorrow."


class SubscriptionError(ValueError):
    """The subscription cannot be created or tested; the user reads the message."""


def subscribe(user: User, kind: str, address: str, topics: Collection[str]) -> Subscription:
    """Create a subscription. An e-mail address has to confirm it first."""
    address = CHANNELS[kind].clean_address(address)
    needs_confirmation = kind == Subscription.Kind.EMAIL
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)  # concurrent requests would both pass the limit
        if Subscription.objects.filter(user=user).count() >= MAX_SUBSCRIPTIONS:
            raise SubscriptionError(f"You have {MAX_SUBSCRIPTIONS} subscriptions. Delete one before you add another.")
        if needs_confirmation:
            check_daily_limit(user)
        try:
            with transaction.atomic():
                subscription = Subscription.objects.create(
                    user=user,
                    kind=kind,
                    address=address,
                    topics=filter_topics(user, topics),
                    confirmed_at=None if needs_confirmation else timezone.now(),
                )
        except IntegrityError:
            raise SubscriptionError("This address is subscribed already. Choose its notices below.") from None
        if needs_confirmation:
            enqueue_message("confirm", subscription)
    return subscription


def filter_topics(user: User, topics: Collection[str]) -> list[str]:
    return [key for key in list_choosable_topics(user) if key in topics]


def set_topics(subscription: Subscription, topics: Collection[str]) -> None:
    subscription.topics = filter_topics(subscription.user, topics)
    subscription.save(update_fields=["topics"])


def send_test_notice(subscription: Subscription) -> bool:
    """Queue a test notice; return False if the daily limit is reached."""
    with transaction.atomic():
        try:
            check_daily_limit(subscription.user)
        except SubscriptionError:
            return False
        enqueue_message("trial" if subscription.confirmed_at else "confirm", subscription)
    return True


def enqueue_message(message: str, subscription: Subscription) -> OutboxMessage:
    return delivery.enqueue_notice(message, secrets.token_hex(4), subscription)


def check_daily_limit(user: User) -> None:
    """Raise SubscriptionError if the user has reached `MAX_TEST_NOTICES`."""
    subscriptions = list(Subscription.objects.filter(user=user).values_list("pk", flat=True))
    recent = OutboxMessage.objects.filter(kind=delivery.KIND, created_at__gt=timezone.now() - timedelta(days=1))
    sent = recent.filter(payload__topic__in=["confirm", "trial"], payload__subscription__in=subscriptions)
    if sent.count() >= MAX_TEST_NOTICES:
        raise SubscriptionError(DAILY_LIMIT_REACHED)


def confirm_subscription(subscription: Subscription) -> None:
    Subscription.objects.filter(pk=subscription.pk, confirmed_at=None).update(confirmed_at=timezone.now())


def resume_subscription(subscription: Subscription) -> bool:
    """Resume a subscription that failed deliveries stopped; return False if the daily limit allows no test notice."""
    Subscription.objects.filter(pk=subscription.pk).update(stopped_at=None, problem="")
    return send_test_notice(subscription)


def delete_subscription(subscription: Subscription) -> None:
    Subscription.objects.filter(pk=subscription.pk).delete()
