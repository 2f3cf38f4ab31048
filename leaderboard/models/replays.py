"""Replays: spot checks of trainings."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from leaderboard.models.runs import Run
from scheduler.models import Checkpoint, Job, Node


class Replay(models.Model):
    """A part of a run between two checkpoints, trained again on another node."""

    class State(models.TextChoices):
        WAITING = "waiting"
        AGREED = "agreed"
        DIFFERED = "differed"
        ABANDONED = "abandoned"  # it could not be trained again; says nothing about the run

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="replays")
    node = models.ForeignKey(
        Node,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="Node whose training is checked.",
    )
    job = models.OneToOneField(Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="replay")
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    sentence = models.CharField(max_length=500, blank=True, help_text="Outcome in a sentence.")
    start_step = models.BigIntegerField(default=0, help_text="0: from the initial weights.")
    end_step = models.BigIntegerField()
    start = models.ForeignKey(
        Checkpoint,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="Null for the initial weights, and when the replay has ended, so that the file can be deleted.",
    )
    middle = models.ForeignKey(
        Checkpoint,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="Checkpoint between both ends. Null if it is one stretch, and when the replay has ended.",
    )
    first = models.ForeignKey(
        Checkpoint,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="The run's first checkpoint, replayed as well. Null if `start` is, and when the replay has ended.",
    )
    claimed = models.ForeignKey(
        Checkpoint,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="Checkpoint that the node reported for `end_step`. Null when the replay has ended.",
    )
    deviation = models.FloatField(
        null=True, blank=True, help_text="Distance between the two results, relative to the distance the weights moved."
    )
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["created_at", "pk"]

    def __str__(self) -> str:
        return f"steps {self.start_step} to {self.end_step} of run {self.run_id}"
