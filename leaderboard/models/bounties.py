"""Bounties on a track's record."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils import timezone

from leaderboard.models.entries import Entry
from leaderboard.models.tracks import Track


class BountyQuerySet(models.QuerySet["Bounty"]):
    def open(self) -> BountyQuerySet:
        """Return what can be claimed, the easiest goal first."""
        return self.filter(state=Bounty.State.OPEN).select_related("track").order_by("above", "pk")

    def shown(self, track: Track) -> BountyQuerySet:
        """Return the track's open bounties, then the claimed ones, latest first."""
        return (
            self.filter(track=track)
            .exclude(state=Bounty.State.WITHDRAWN)
            .select_related("claimed_by")
            .order_by("-state", "-claimed_at", "above", "pk")
        )


class Bounty(models.Model):
    """A sponsor's reward for the first confirmed record of a track whose multiplier exceeds a goal."""

    class State(models.TextChoices):
        OPEN = "open"
        CLAIMED = "claimed"
        WITHDRAWN = "withdrawn"

    track = models.ForeignKey(Track, on_delete=models.PROTECT, related_name="bounties")
    above = models.FloatField(
        validators=[MinValueValidator(1.0), MaxValueValidator(1000.0)],
        help_text="The compute multiplier that a record's confirmation runs must exceed, by FLOPs: 1.05.",
    )
    reward = models.CharField(max_length=200, help_text="What there is to win, in a few words.")
    sponsor = models.CharField(max_length=120, blank=True, help_text="Who gives it.")
    link = models.URLField(blank=True, help_text="Where its terms are.")
    state = models.CharField(max_length=9, choices=State.choices, default=State.OPEN)
    claimed_by = models.ForeignKey(Entry, null=True, blank=True, on_delete=models.PROTECT, related_name="bounties")
    claimed_at = models.DateTimeField(null=True, blank=True)
    multiplier = models.FloatField(
        null=True, blank=True, help_text="Multiplier of the record that claimed the bounty, at that moment."
    )
    created_at = models.DateTimeField(default=timezone.now)

    objects = BountyQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "bounties"
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"{self.goal} on {self.track}: {self.reward}"

    @property
    def goal(self) -> str:
        return f"CM > {self.above:g}"
