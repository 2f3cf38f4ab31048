"""The outbox: requests to other services, stored before they are sent."""

from __future__ import annotations

from django.db import models
from django.utils import timezone


class OutboxMessageQuerySet(models.QuerySet["OutboxMessage"]):
    def due(self) -> OutboxMessageQuerySet:
        """Return what is to be sent now, oldest first: requested, or claimed by a process that died."""
        now = timezone.now()
        asked = models.Q(state=OutboxMessage.State.PENDING, not_before__lte=now)
        lost = models.Q(state=OutboxMessage.State.CLAIMED, claimed_until__lt=now)
        return self.filter(asked | lost).order_by("not_before", "pk")


class OutboxMessage(models.Model):
    """A change to make in another service; its handler (`settings.OUTBOX_HANDLERS`) computes it from the rows."""

    class State(models.TextChoices):
        PENDING = "pending"
        CLAIMED = "claimed"
        DONE = "done"
        FAILED = "failed"  # cannot be done however often it is tried; asking again tries again

    kind = models.CharField(max_length=40)
    key = models.CharField(max_length=160, unique=True, help_text="Idempotency key: `github.comment:7`, `hub.run:12`.")
    payload = models.JSONField(default=dict, blank=True)
    state = models.CharField(max_length=8, choices=State.choices, default=State.PENDING)
    version = models.BigIntegerField(default=1, help_text="Increases with each request.")
    result = models.JSONField(
        default=dict, blank=True, help_text="State of the handler for the next run, for example the comment's id."
    )
    attempts = models.IntegerField(default=0, help_text="Attempts since it was last requested or done.")
    problem = models.CharField(max_length=500, blank=True)
    not_before = models.DateTimeField(default=timezone.now)
    claimed_until = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    done_at = models.DateTimeField(null=True, blank=True)

    objects = OutboxMessageQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]
        indexes = [models.Index(fields=["state", "not_before"])]

    def __str__(self) -> str:
        return f"{self.key} ({self.state})"
