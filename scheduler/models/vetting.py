"""Comparisons of nodes' results with known results."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from scheduler.models.jobs import Job
from scheduler.models.pool import Node


class ResultCheck(models.Model):
    """A node's result, compared by a checking job. One row per job, so that nothing counts twice."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="result_checks")
    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, related_name="result_check", help_text="The job that compared."
    )
    valid = models.BooleanField()
    sentence = models.CharField(max_length=500)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["at", "pk"]

    def __str__(self) -> str:
        return f"{self.node}: {self.sentence}"
