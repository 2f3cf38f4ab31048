"""Weights that are kept for good: of a finished run, and at milestones of a long one."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from leaderboard.models.runs import Run
from scheduler.models import Blob, Job

FINAL = "final"


class Publication(models.Model):
    """A run's weights at one step, under a name. The site gives them to everybody, and the Hub where there is one.

    It holds on to the files itself, without the optimizer's: checkpoints may be forgotten.
    """

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="publications")
    name = models.SlugField(max_length=40)
    """`final`, or of a release: `30-percent`."""
    step = models.BigIntegerField()
    manifest = models.JSONField()
    """A `protocol.Checkpoint`: the whole one's."""
    blobs = models.ManyToManyField(Blob, related_name="+")
    """Its files, without the optimizer's."""
    reason = models.CharField(max_length=200)
    """Why it is published, in a sentence."""
    repository = models.CharField(max_length=120, blank=True)
    """On the Hub, owner/name; empty until it is there."""
    commit = models.CharField(max_length=40, blank=True)
    score_job = models.OneToOneField(
        Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="scored_publication"
    )
    """Of a release: the job that scores these very weights. The final ones have their run's scores."""
    scores = models.JSONField(default=list, blank=True)
    """What came of it, a `ScoreDict` each; empty until then."""
    published_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["run_id", "step", "pk"]
        constraints = [models.UniqueConstraint(fields=["run", "name"], name="one_publication_per_name")]

    def __str__(self) -> str:
        return f"run {self.run_id}, {self.name}"

    @property
    def bits_per_byte(self) -> float | None:
        """Return the release's own score; of the final weights, their run's."""
        if self.is_final:
            return self.run.bits_per_byte
        return next((score["value"] for score in self.scores if score["name"] == "bits_per_byte"), None)

    @property
    def is_final(self) -> bool:
        return self.name == FINAL
