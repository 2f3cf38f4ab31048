"""Records that other boards report; unverified."""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from typing_extensions import TypedDict

from leaderboard.models.dicts import build_dict
from leaderboard.models.tracks import Track


class ReportedDict(TypedDict):
    source: str
    date: str
    title: str
    author: str
    value: float
    measures: str
    lower_is_better: bool
    url: str
    verified: bool
    """Always false."""


class ReportedRecord(models.Model):
    """A record of another board (`manage.py import_records`)."""

    track = models.ForeignKey(Track, on_delete=models.CASCADE, related_name="reported")
    source = models.CharField(max_length=120, help_text="Name of the other board.")
    date = models.DateField()
    title = models.CharField(max_length=200)
    author = models.CharField(max_length=120, blank=True)
    value = models.FloatField()
    measures = models.CharField(
        max_length=200,
        help_text='What `value` measures, with its unit: "minutes to 3.28 nats per token on eight H100".',
    )
    lower_is_better = models.BooleanField(default=True)
    url = models.URLField(blank=True)
    imported_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["source", "date", "pk"]
        constraints = [
            models.UniqueConstraint(fields=["track", "source", "date", "title"], name="one_report_of_a_record")
        ]

    def __str__(self) -> str:
        return f"{self.title} ({self.source}, reported)"

    def to_dict(self) -> ReportedDict:
        return build_dict(self, ReportedDict, date=self.date.isoformat(), verified=False)
