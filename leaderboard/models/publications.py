"""Published weights."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from leaderboard.models.runs import Run
from scheduler.models import Blob, Job

FINAL = "final"


class Publication(models.Model):
    """A run's weights at one step, under a name: a milestone, or final ones. Its files stay as long as the row."""

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="publications")
    name = models.SlugField(max_length=40, help_text="`final`, or the name of a milestone: `30-percent`.")
    step = models.BigIntegerField()
    manifest = models.JSONField(help_text="The full `protocol.Checkpoint`.")
    blobs = models.ManyToManyField(Blob, related_name="+", help_text="Files of the checkpoint without the optimizer's.")
    reason = models.CharField(max_length=200, help_text="Why it is kept or published, in a sentence.")
    is_release = models.BooleanField(
        default=False, help_text="Its weights are scored: they were a release by the track's setting on arrival."
    )
    repository = models.CharField(
        max_length=120, blank=True, help_text="Repository on the Hub, owner/name. Empty until the upload."
    )
    commit = models.CharField(max_length=40, blank=True)
    score_job = models.OneToOneField(
        Job,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="scored_publication",
        help_text="Job that scores the weights of a release. Final weights use the scores of their run.",
    )
    scores = models.JSONField(
        default=list, blank=True, help_text="Scores of the release as `ScoreDict`s. Empty until it is scored."
    )
    published_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["run_id", "step", "pk"]
        constraints = [models.UniqueConstraint(fields=["run", "name"], name="one_publication_per_name")]

    def __str__(self) -> str:
        return f"run {self.run_id}, {self.name}"

    @property
    def bits_per_byte(self) -> float | None:
        if self.is_final:
            return self.run.bits_per_byte
        return next((score["value"] for score in self.scores if score["name"] == "bits_per_byte"), None)

    @property
    def is_final(self) -> bool:
        return self.name == FINAL

    @property
    def percent(self) -> int:
        """Percent of the budget; 100 for final weights."""
        return 100 if self.is_final else int(self.manifest.get("milestone") or self.name.partition("-")[0])
