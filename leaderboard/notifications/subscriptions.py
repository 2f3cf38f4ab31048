"""Making, changing and ending subscriptions."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import timedelta

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from leaderboard.models import Effect, Subscription
from leaderboard.notifications import delivery
from leaderboard.notifications.channels import CHANNELS
from leaderboard.notifications.topics import list_choosable_topics

MAX_SUBSCRIPTIONS = 10
"""Of one person."""
MAX_TEST_NOTICES = 5
"""Notices of our own (trials, questions to e-mail addresses) that one person may cause in a day."""


class SubscriptionError(ValueError):
    """It cannot be made so; the message is a sentence for whoever asked."""


def subscribe(user: User, kind: str, address: str, topics: Iterable[str]) -> Subscription:
    """Keep a place for notices; an e-mail address is asked first. A webhook has a new secret in `secret`."""
    address = CHANNELS[kind].clean_address(address)
    asks = kind == Subscription.Kind.EMAIL
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)  # two at once would both find room
        if Subscription.objects.filter(user=user).count() >= MAX_SUBSCRIPTIONS:
            raise SubscriptionError(f"You have {MAX_SUBSCRIPTIONS} already: end one before you add another.")
        if asks:
            check_daily_limit(user)
        try:
            with transaction.atomic():
                made = Subscription.objects.create(
                    user=user,
                    kind=kind,
                    address=address,
                    topics=filter_topics(user, topics),
                    secret=secrets.token_urlsafe(32) if kind == Subscription.Kind.WEBHOOK else "",
                    confirmed_at=None if asks else timezone.now(),
                )
        except IntegrityError:
            raise SubscriptionError("Notices go there already: choose below which ones.") from None
        if asks:
            enqueue_message("confirm", made)
    return made


def filter_topics(user: User, topics: Iterable[str]) -> list[str]:
    chosen = set(topics)
    return [key for key in list_choosable_topics(user) if key in chosen]


def set_topics(subscription: Subscription, topics: Iterable[str]) -> None:
    subscription.topics = filter_topics(subscription.user, topics)
    subscription.save(update_fields=["topics"])


def send_test_notice(subscription: Subscription) -> bool:
    """Send a notice that says nothing but that it arrives; return whether it will be."""
    with transaction.atomic():
        try:
            check_daily_limit(subscription.user)
        except SubscriptionError:
            return False
        enqueue_message("trial" if subscription.confirmed_at else "confirm", subscription)
    return True


def enqueue_message(letter: str, subscription: Subscription) -> Effect:
    return delivery.enqueue_notice(letter, secrets.token_hex(4), subscription)


def check_daily_limit(user: User) -> None:
    """Raise SubscriptionError where somebody has us write too much."""
    theirs = [f":{pk}" for pk in Subscription.objects.filter(user=user).values_list("pk", flat=True)]
    lately = Effect.objects.filter(kind=delivery.KIND, created_at__gt=timezone.now() - timedelta(days=1))
    keys = lately.filter(payload__topic__in=["confirm", "trial"]).values_list("key", flat=True)
    if sum(key.endswith(tuple(theirs)) for key in keys) >= MAX_TEST_NOTICES:
        raise SubscriptionError("That is enough for today: try again tomorrow.")


def confirm_subscription(subscription: Subscription) -> None:
    """Whoever reads the address has said yes."""
    Subscription.objects.filter(pk=subscription.pk, confirmed_at=None).update(confirmed_at=timezone.now())


def resume_subscription(subscription: Subscription) -> None:
    """Try an address again that turned notices away."""
    Subscription.objects.filter(pk=subscription.pk).update(stopped_at=None, problem="")
    send_test_notice(subscription)


def delete_subscription(subscription: Subscription) -> None:
    """Forget the address. Notices under way find nobody."""
    Subscription.objects.filter(pk=subscription.pk).delete()
