"""Spot checks: a stretch of a run, trained again elsewhere."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from leaderboard.models.runs import Run
from scheduler.models import Checkpoint, Job, Node


class Replay(models.Model):
    """One stretch of a run between two of its checkpoints, drawn after both had been uploaded."""

    class State(models.TextChoices):
        WAITING = "waiting"
        AGREED = "agreed"
        DIFFERED = "differed"
        ABANDONED = "abandoned"  # it could not be trained again; says nothing about the run

    OVER = (State.AGREED, State.DIFFERED, State.ABANDONED)

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="replays")
    node = models.ForeignKey(Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    """Whose work it checks."""
    job = models.OneToOneField(Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="replay")
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    sentence = models.CharField(max_length=500, blank=True)
    """What came of it."""
    start_step = models.BigIntegerField(default=0)
    """0: from the first weights."""
    end_step = models.BigIntegerField()
    start = models.ForeignKey(Checkpoint, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    """Empty from the first weights; empty, too, when it is over, so that the file may be forgotten."""
    claimed = models.ForeignKey(Checkpoint, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    """What the node said came out of the stretch; empty when it is over."""
    deviation = models.FloatField(null=True, blank=True)
    """How far the two results are apart, over how far the weights moved in the stretch."""
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["created_at", "pk"]

    def __str__(self) -> str:
        return f"steps {self.start_step} to {self.end_step} of run {self.run_id}"
