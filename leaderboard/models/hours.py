"""Hours of a track."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import models

from leaderboard.models.tracks import Track


class TrackHours(models.Model):
    """A weekly period in which jobs of a track may start, in its time zone. Tracks without any have no limit."""

    class Day(models.IntegerChoices):
        MONDAY = 0
        TUESDAY = 1
        WEDNESDAY = 2
        THURSDAY = 3
        FRIDAY = 4
        SATURDAY = 5
        SUNDAY = 6

    track = models.ForeignKey(Track, on_delete=models.CASCADE, related_name="hours")
    weekday = models.PositiveSmallIntegerField(choices=Day.choices)
    start = models.TimeField()
    end = models.TimeField(help_text="On the next day where it is not later than the start.")

    class Meta:
        verbose_name_plural = "track hours"
        ordering = ["weekday", "start"]

    def __str__(self) -> str:
        return f"{self.Day(self.weekday).label}, {self.start:%H:%M} to {self.end:%H:%M}"

    def clean(self) -> None:
        if self.track.kind == Track.Kind.COMPETITION:
            raise ValidationError("Hours are for community and playground tracks; the competition runs at any time.")
