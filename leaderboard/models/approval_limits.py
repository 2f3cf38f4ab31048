"""The hours of a day within which entries are approved without a maintainer."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models


class ApprovalLimits(models.Model):
    """One row. Hours are those of any 24 hours, of GPUs; a track without GPUs counts its machines."""

    is_paused = models.BooleanField("paused", default=False, help_text="Nothing is approved automatically.")
    author_hours = models.FloatField(default=4.0, validators=[MinValueValidator(0)], help_text="Of one author.")
    site_hours = models.FloatField(default=48.0, validators=[MinValueValidator(0)], help_text="Of all authors.")
    cursor = models.BigIntegerField(
        default=0, db_default=0, editable=False, help_text="The entry that was last decided again; others follow it."
    )

    class Meta:
        verbose_name_plural = "approval limits"

    def __str__(self) -> str:
        return "the limits of automatic approvals"

    @classmethod
    def load(cls) -> ApprovalLimits:
        return cls.objects.get_or_create(pk=1)[0]
