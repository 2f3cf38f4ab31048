"""Log of the nightly and the monthly runs."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from leaderboard.models.runs import Run
from leaderboard.models.tracks import Track


class Night(models.Model):
    """The run that one night started on one track. The unique row makes the start idempotent."""

    date = models.DateField(help_text="Local date, in the time zone of the schedule.")
    track = models.ForeignKey(Track, on_delete=models.CASCADE, related_name="nights")
    sha = models.CharField(max_length=40, blank=True, help_text="Head of `main` that night. Empty if the fetch failed.")
    run = models.ForeignKey(
        Run,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="nights",
        help_text="Tonight's run. Null while it waits, if the night belongs to the ladder, or if nothing was started.",
    )
    is_waiting = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Due, and not yet started: it starts when the run of an earlier night has ended.",
    )
    problem = models.CharField(
        max_length=300,
        blank=True,
        help_text="Why `main` could not be trained although a slot was free. Empty if it could.",
    )
    sentence = models.CharField(max_length=500, help_text="What was started or skipped, and why.")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-date"]
        constraints = [models.UniqueConstraint(fields=["date", "track"], name="one_night_per_date_and_track")]

    def __str__(self) -> str:
        return f"{self.date}: {self.sentence}"


class Month(models.Model):
    """The monthly runs of one month on one track; see `Night`."""

    date = models.DateField(help_text="First day of the month.")
    track = models.ForeignKey(Track, on_delete=models.CASCADE, related_name="months")
    runs = models.ManyToManyField(
        Run, blank=True, related_name="months", help_text="Runs of the best entries and of the baseline."
    )
    sentence = models.CharField(max_length=500)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-date"]
        constraints = [models.UniqueConstraint(fields=["date", "track"], name="one_monthly_train_per_month_and_track")]

    def __str__(self) -> str:
        return f"{self.date:%B %Y}: {self.sentence}"
