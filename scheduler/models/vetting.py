"""What was found when a node's work was compared with what the site knew."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from scheduler.models.jobs import Job
from scheduler.models.pool import Node


class Judgement(models.Model):
    """One result of a node, compared. One row for each checking job, so that nothing counts twice."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="judgements")
    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="judgement")
    """The job that compared."""
    valid = models.BooleanField()
    sentence = models.CharField(max_length=500)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["at", "pk"]

    def __str__(self) -> str:
        return f"{self.node}: {self.sentence}"
