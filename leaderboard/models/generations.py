"""Prompts of visitors."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from django.db import models
from django.urls import reverse
from django.utils import timezone

from leaderboard.models.runs import Run
from scheduler.models import Job


def new_token() -> str:
    return secrets.token_urlsafe(12)


class GenerationQuerySet(models.QuerySet["Generation"]):
    def unanswered(self) -> GenerationQuerySet:
        return self.filter(job__state=Job.State.QUEUED)

    def since(self, moment: datetime) -> GenerationQuerySet:
        return self.filter(created_at__gte=moment)

    def outdated(self, now: datetime, kept: timedelta) -> GenerationQuerySet:
        return self.filter(created_at__lt=now - kept)


class Generation(models.Model):
    """A prompt, the run whose model continues it, and the text so far. It has no name or address of the visitor."""

    token = models.CharField(max_length=32, unique=True, default=new_token, help_text="Secret part of the page's URL.")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="generations")
    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="generation")
    prompt = models.TextField()
    tokens = models.PositiveIntegerField(help_text="Maximum number of tokens.")
    temperature = models.FloatField()
    seed = models.BigIntegerField()
    text = models.TextField(blank=True, help_text="Untrusted output of the model: always displayed as plain text.")
    written = models.PositiveIntegerField(
        null=True, blank=True, help_text="Number of generated tokens. Null until the generation has ended."
    )
    seconds = models.FloatField(null=True, blank=True)
    ended = models.CharField(max_length=12, blank=True, help_text="`protocol.GenerateResult.ended`.")
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    objects = GenerationQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"generation {self.pk} by run {self.run_id}"

    def get_absolute_url(self) -> str:
        return reverse("generation", args=[self.token])

    @property
    def is_over(self) -> bool:
        return self.job.state in (Job.State.DONE, Job.State.FAILED, Job.State.CANCELLED)

    @property
    def is_from_swarm(self) -> bool:
        """Whether the run's swarm wrote it while it trained."""
        return self.job.kind == "swarm_sample"

    @property
    def tokens_per_second(self) -> float | None:
        return self.written / self.seconds if self.written and self.seconds else None
