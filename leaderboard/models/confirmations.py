"""Confirmations: the decision about an entry's confirmation runs."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from leaderboard.models.entries import Entry
from leaderboard.models.seasons import Season


class Confirmation(models.Model):
    """What an entry's confirmation runs of one season came to. There is none until all of them have ended."""

    class Outcome(models.TextChoices):
        RECORD = "record", "A record: its confirmation runs alone are clearly over the baseline and the record before."
        REPLICATED = "replicated", "Confirmed: fresh seeds on unrelated, trusted nodes agree with the first runs."
        WORSE = "worse", "Not confirmed: its confirmation runs are clearly worse than its first runs."
        INCOMPLETE = (
            "incomplete",
            "Not confirmed: not every confirmation run came to its end, and all that start count.",
        )

    entry = models.ForeignKey(Entry, on_delete=models.CASCADE, related_name="confirmations")
    season = models.ForeignKey(Season, on_delete=models.PROTECT, related_name="confirmations")
    outcome = models.CharField(
        max_length=12, choices=Outcome.choices, help_text="A record stays one when another entry takes the record."
    )
    standard_errors = models.FloatField(
        null=True, blank=True, help_text="By how many standard errors they are worse than the first runs."
    )
    decided_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["entry", "season"], name="one_confirmation_per_season")]

    def __str__(self) -> str:
        return f"{self.entry} in {self.season}: {self.outcome}"
