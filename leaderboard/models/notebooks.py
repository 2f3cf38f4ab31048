"""Parts of notebook runs."""

from __future__ import annotations

from django.db import models

from leaderboard.models.runs import Run
from scheduler.models import Job


class NotebookPart(models.Model):
    """One notebook of a run, and the job that runs it."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="parts")
    number = models.PositiveIntegerField(help_text="Position in the entry's `notebooks`, from 1.")
    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="notebook_part")

    class Meta:
        ordering = ["run", "number"]
        constraints = [models.UniqueConstraint(fields=["run", "number"], name="one_part_per_number")]

    def __str__(self) -> str:
        return f"part {self.number} of run {self.run_id}"
