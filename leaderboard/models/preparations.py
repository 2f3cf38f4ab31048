"""The preparation of a season: a job of hours, whose row has its progress and survives its process."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from leaderboard.models.seasons import Season


class SeasonPreparationQuerySet(models.QuerySet["SeasonPreparation"]):
    def working(self) -> SeasonPreparationQuerySet:
        """Return those that a living process works on."""
        return self.filter(state=SeasonPreparation.State.RUNNING, claimed_until__gte=timezone.now())

    def due(self) -> SeasonPreparationQuerySet:
        """Return those that a process may claim, oldest first: requested, or of a process that died."""
        lost = models.Q(state=SeasonPreparation.State.RUNNING, claimed_until__lt=timezone.now())
        return self.filter(models.Q(state=SeasonPreparation.State.QUEUED) | lost).order_by("requested_at")


class SeasonPreparation(models.Model):
    """Store a season's evaluation data and dataset, then begin the season. Only one is worked on at a time."""

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"
        CANCELLED = "cancelled"

    season = models.OneToOneField(Season, on_delete=models.CASCADE, related_name="preparation")
    state = models.CharField(max_length=9, choices=State.choices, default=State.QUEUED)
    suite = models.JSONField(default=list, blank=True, help_text="Benchmark tasks whose data the season stores.")
    evaluation_folder = models.CharField(
        max_length=500, blank=True, help_text="Folder of the server with evaluation data. Empty: download it."
    )
    stage = models.CharField(max_length=80, blank=True)
    done_bytes = models.BigIntegerField(default=0, help_text="Of the stage.")
    total_bytes = models.BigIntegerField(null=True, blank=True, help_text="Of the stage. Null: unknown.")
    stage_started_at = models.DateTimeField(null=True, blank=True)
    stage_started_bytes = models.BigIntegerField(default=0, help_text="What earlier processes had done of the stage.")
    updated_at = models.DateTimeField(null=True, blank=True)
    message = models.TextField(blank=True, help_text="The result, or why it failed.")
    claim = models.CharField(max_length=32, blank=True, help_text="Of the process that works on it.")
    claimed_until = models.DateTimeField(null=True, blank=True, help_text="Then another process may continue.")
    requested_by = models.CharField(max_length=150)
    requested_at = models.DateTimeField(default=timezone.now)

    objects = SeasonPreparationQuerySet.as_manager()

    def __str__(self) -> str:
        return f"Preparation of {self.season}"

    @property
    def is_over(self) -> bool:
        return self.state in (self.State.DONE, self.State.FAILED, self.State.CANCELLED)

    @property
    def is_stalled(self) -> bool:
        """Whether the process that works on it has died."""
        return self.state == self.State.RUNNING and bool(self.claimed_until and self.claimed_until < timezone.now())

    @property
    def rate(self) -> float | None:
        """Return the bytes a second of the current process in this stage; None without progress."""
        if self.stage_started_at is None or self.updated_at is None:
            return None
        seconds = (self.updated_at - self.stage_started_at).total_seconds()
        done = self.done_bytes - self.stage_started_bytes
        return done / seconds if done > 0 and seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Return the time left of the stage; None if unknown."""
        if self.total_bytes is None or self.rate is None:
            return None
        return max(0, self.total_bytes - self.done_bytes) / self.rate
