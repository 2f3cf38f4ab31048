"""The diary of the nightly and of the monthly train."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from leaderboard.models.runs import Run
from leaderboard.models.seasons import Track


class Night(models.Model):
    """What one night did on one track. The row is why asking twice starts nothing twice."""

    date = models.DateField()
    track = models.ForeignKey(Track, on_delete=models.CASCADE, related_name="nights")
    sha = models.CharField(max_length=40, blank=True)
    """Head of `main` that night; empty when it could not be fetched."""
    run = models.ForeignKey(Run, null=True, blank=True, on_delete=models.SET_NULL, related_name="nights")
    """Tonight's train; none when nothing was started, or when last night's still runs."""
    problem = models.CharField(max_length=300, blank=True)
    """Why `main` could not be trained, though there was room for it; empty when it could."""
    sentence = models.CharField(max_length=500)
    """What was done and why."""
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-date"]
        constraints = [models.UniqueConstraint(fields=["date", "track"], name="one_night_per_date_and_track")]

    def __str__(self) -> str:
        return f"{self.date}: {self.sentence}"


class Month(models.Model):
    """What the monthly train of one month did on one track: as `Night`, and as often."""

    date = models.DateField()
    """Its first day."""
    track = models.ForeignKey(Track, on_delete=models.CASCADE, related_name="months")
    runs = models.ManyToManyField(Run, blank=True, related_name="months")
    """Of the best entries, and of the baseline beside them."""
    sentence = models.CharField(max_length=500)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-date"]
        constraints = [models.UniqueConstraint(fields=["date", "track"], name="one_monthly_train_per_month_and_track")]

    def __str__(self) -> str:
        return f"{self.date:%B %Y}: {self.sentence}"
