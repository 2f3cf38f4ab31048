"""Subscriptions to notices."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone


class SubscriptionQuerySet(models.QuerySet["Subscription"]):
    def listening(self) -> SubscriptionQuerySet:
        """Return confirmed, active subscriptions of active users."""
        return self.filter(confirmed_at__isnull=False, stopped_at=None, user__is_active=True).select_related("user")


class Subscription(models.Model):
    """An address for notices, and the topics that its owner chose."""

    class Kind(models.TextChoices):
        """One class each in `leaderboard/notifications/channels/`."""

        DISCORD = "discord", "Discord"
        SLACK = "slack", "Slack"
        EMAIL = "email", "E-mail"

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="subscriptions")
    kind = models.CharField(max_length=8, choices=Kind.choices)
    address = models.CharField(
        max_length=500, help_text="Discord and Slack addresses are secrets: never displayed again."
    )
    topics = models.JSONField(default=list, blank=True, help_text="Keys of `leaderboard.notifications.topics.TOPICS`.")
    created_at = models.DateTimeField(default=timezone.now)
    confirmed_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Null until the recipient has confirmed an e-mail address. Other kinds need no confirmation.",
    )
    stopped_at = models.DateTimeField(
        null=True, blank=True, help_text="When the address rejected notices permanently. See `problem`."
    )
    problem = models.CharField(max_length=300, blank=True)
    sent_at = models.DateTimeField(null=True, blank=True)

    objects = SubscriptionQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["user", "kind", "address"], name="one_subscription_per_address")]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} of {self.user}"
