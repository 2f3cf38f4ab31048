"""Metrics, samples and scores of a run."""

from __future__ import annotations

from django.db import models
from typing_extensions import TypedDict

from leaderboard.models.dicts import build_dict
from leaderboard.models.runs import Run


class PointDict(TypedDict):
    step: int
    tokens: int
    flops: float
    seconds: float
    loss: float
    bits_per_byte: float | None
    learning_rate: float | None
    gradient_norm: float | None
    tokens_per_second: float | None
    mfu: float | None
    mfu_windowed: float | None
    memory_bytes: int | None
    temperature_celsius: float | None


class CurvePoint(models.Model):
    """One line of a run's metrics. A resumed run writes the same steps with the same values."""

    class Series(models.TextChoices):
        TRAIN = "train"
        DEV = "dev"

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="points", db_index=False)
    series = models.CharField(max_length=6, choices=Series.choices)
    step = models.BigIntegerField()
    tokens = models.BigIntegerField()
    flops = models.FloatField()
    seconds = models.FloatField()
    loss = models.FloatField(help_text="Nats per token.")
    bits_per_byte = models.FloatField(null=True)
    learning_rate = models.FloatField(null=True)
    gradient_norm = models.FloatField(null=True)
    tokens_per_second = models.FloatField(null=True)
    mfu = models.FloatField(null=True, help_text="Share of the peak: all operations, attention over all pairs.")
    mfu_windowed = models.FloatField(
        null=True, help_text="Share of the peak as nanochat counts: matrix products, attention over its windows."
    )
    memory_bytes = models.BigIntegerField(null=True)
    temperature_celsius = models.FloatField(
        null=True, help_text="Temperature of the node's hottest GPU, as last reported by its agent."
    )

    class Meta:
        ordering = ["series", "step"]
        constraints = [models.UniqueConstraint(fields=["run", "series", "step"], name="one_point_per_step")]

    def __str__(self) -> str:
        return f"run {self.run_id} {self.series} step {self.step}"


class SampleDict(TypedDict):
    step: int
    prompt: str
    text: str


class Sample(models.Model):
    """What the model wrote for a fixed prompt at a checkpoint. Untrusted: plain text, never HTML."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="samples")
    step = models.BigIntegerField()
    prompt = models.CharField(max_length=500)
    text = models.TextField()

    class Meta:
        ordering = ["step", "pk"]
        constraints = [models.UniqueConstraint(fields=["run", "step", "prompt"], name="one_sample_per_prompt")]

    def __str__(self) -> str:
        return f"run {self.run_id} step {self.step}"

    def to_dict(self) -> SampleDict:
        return build_dict(self, SampleDict)


class ScoreDict(TypedDict):
    name: str
    value: float
    stderr: float | None
    count: int | None


class Score(models.Model):
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="scores")
    name = models.CharField(
        max_length=120, help_text="`bits_per_byte`, `nats_per_token`, or `<lm-eval task>/<metric>`."
    )
    value = models.FloatField()
    stderr = models.FloatField(null=True)
    count = models.BigIntegerField(null=True, help_text="Number of tokens or items.")

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["run", "name"], name="one_score_per_name")]

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.4f}"

    def to_dict(self) -> ScoreDict:
        return build_dict(self, ScoreDict)
