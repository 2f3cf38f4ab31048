"""Events: the audit log, the timelines of pages and the source of notifications."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

SITE_ACTOR = "site"
"""Actor of the events that the site itself causes. Sign-up refuses it as a user name."""


class EventQuerySet(models.QuerySet["Event"]):
    def about(self, target: models.Model) -> EventQuerySet:
        return self.filter(target_kind=target._meta.model_name, target_id=target.pk)


class Event(models.Model):
    """A state change: actor, target and message. Only `announced` ever changes."""

    at = models.DateTimeField(default=timezone.now, db_index=True)
    actor = models.CharField(max_length=120, help_text="A user name, node:<name> or site.")
    target_kind = models.CharField(max_length=40, help_text="Model name of the target: job, node, run, entry...")
    target_id = models.BigIntegerField()
    kind = models.CharField(
        max_length=20,
        blank=True,
        default="",
        db_default="",
        help_text="Word for listeners, where the target's row says less.",
    )
    sentence = models.CharField(max_length=500)
    announced = models.BooleanField(default=False, help_text="Whether its listeners were called.")

    objects = EventQuerySet.as_manager()

    class Meta:
        ordering = ["at", "pk"]
        indexes = [
            models.Index(fields=["target_kind", "target_id", "at"]),
            models.Index(fields=["id"], condition=models.Q(announced=False), name="events_to_announce"),
        ]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} {self.actor}: {self.sentence}"

    @classmethod
    def get_latest_id(cls) -> int:
        """Return the id of the newest event, 0 if there is none: the revision of pages that refresh."""
        return cls.objects.order_by("-pk").values_list("pk", flat=True).first() or 0

    @classmethod
    def record(cls, actor: str, target: models.Model, sentence: str, kind: str = "") -> Event:
        """Write an Event about the target. `kind`: for listeners."""
        target_kind = target._meta.model_name or ""
        return cls.objects.create(
            actor=actor, target_kind=target_kind, target_id=target.pk, sentence=sentence[:500], kind=kind
        )
