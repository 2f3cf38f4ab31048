"""Traced architectures: the graphs of an entry, as a smoke job left them."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from leaderboard.models.entries import Entry
from leaderboard.models.seasons import Season
from leaderboard.models.tracks import Track
from scheduler.models import Job


class TracedGraphQuerySet(models.QuerySet["TracedGraph"]):
    def usable(self) -> TracedGraphQuerySet:
        """Return traced ones within the season's caps."""
        return self.filter(problem="").exclude(hash="")

    def with_pattern(self, pattern: str) -> TracedGraphQuerySet:
        """Return those that call an operator (`aten::cumsum`) or have a pattern of `dailytrain graph --json`."""
        calls = {f"summary__calls__{part}__has_key": pattern for part in ("features", "logits")}
        called = models.Q(**calls, _connector=models.Q.OR)
        return self.filter(called if "::" in pattern else models.Q(summary__patterns__has_key=pattern))


class TracedGraph(models.Model):
    """An entry traced at one configuration by one smoke job. Pending until it has a hash or a problem.

    Its files are those of the job below `leaderboard.graphs.FOLDER`. A later trace is another row.
    """

    entry = models.ForeignKey(Entry, on_delete=models.CASCADE, related_name="graphs")
    track = models.ForeignKey(Track, on_delete=models.PROTECT, related_name="+")
    season = models.ForeignKey(Season, on_delete=models.PROTECT, related_name="+")
    config = models.JSONField(default=dict, help_text="Traced configuration, with the budget of its first run.")
    config_hash = models.CharField(max_length=64, help_text="Hash of the part of `config` that changes the graph.")
    job = models.OneToOneField(Job, on_delete=models.PROTECT, related_name="traced_graph")
    hash = models.CharField(
        max_length=64, blank=True, help_text="`protocol.GraphFiles.hash`: identity of the graph. Empty until traced."
    )
    summary = models.JSONField(default=dict, blank=True, help_text="What `dailytrain graph --json` prints.")
    baseline_graph = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="compared_graphs",
        help_text="The baseline's graph at the same configuration. The cap on scoring FLOPs is relative to it.",
    )
    problem = models.CharField(max_length=500, blank=True, help_text="Why it may not be trained. Empty: it may.")
    created_at = models.DateTimeField(default=timezone.now)

    objects = TracedGraphQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        indexes = [models.Index(fields=["entry", "track", "config_hash"])]

    def __str__(self) -> str:
        return self.hash[:12] or f"graph {self.pk}"

    @property
    def is_pending(self) -> bool:
        return not self.hash and not self.problem
