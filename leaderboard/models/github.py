"""What GitHub told the site, and which pull requests it knows."""

from __future__ import annotations

from django.db import models
from django.utils import timezone


class DeliveryQuerySet(models.QuerySet["Delivery"]):
    def due(self) -> DeliveryQuerySet:
        """Return what is to be worked on now, in the order of its arrival."""
        now = timezone.now()
        free = models.Q(claimed_until=None) | models.Q(claimed_until__lt=now)
        return self.filter(free, state=Delivery.State.NEW, not_before__lte=now).order_by("pk")


class Delivery(models.Model):
    """One delivery of the webhook, kept as it came. Its id is why a replay does nothing."""

    class State(models.TextChoices):
        NEW = "new"
        DONE = "done"
        IGNORED = "ignored"  # an event, or a repository, that means nothing to us
        FAILED = "failed"

    guid = models.CharField(max_length=64, unique=True)
    """X-GitHub-Delivery."""
    event = models.CharField(max_length=60)
    action = models.CharField(max_length=60, blank=True)
    digest = models.CharField(max_length=64, unique=True, null=True)  # noqa: DJ001  older rows have none
    """SHA-256 of the body: the same again under another id is a replay, too."""
    subject = models.CharField(max_length=220, blank=True)
    """What it is about: `owner/name#7`. Deliveries about one thing are worked through in order."""
    payload = models.JSONField()
    state = models.CharField(max_length=8, choices=State.choices, default=State.NEW, db_index=True)
    attempts = models.IntegerField(default=0)
    not_before = models.DateTimeField(default=timezone.now)
    claimed_until = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=500, blank=True)
    received_at = models.DateTimeField(default=timezone.now)
    done_at = models.DateTimeField(null=True, blank=True)

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "deliveries"
        ordering = ["-received_at", "-pk"]
        indexes = [models.Index(fields=["subject", "state"], name="leaderboard_subject_deliv_idx")]

    def __str__(self) -> str:
        return f"{self.event}.{self.action} {self.guid}"


class Installation(models.Model):
    """The site's GitHub App, installed for an account."""

    number = models.BigIntegerField(unique=True)
    """GitHub's id of the installation."""
    account = models.CharField(max_length=120)
    suspended = models.BooleanField(default=False)
    """Suspended or removed: nothing is asked of it."""
    repositories = models.JSONField(default=list, blank=True)
    """Full names, as far as GitHub told."""
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.account} ({self.number})"


class PullRequest(models.Model):
    """A pull request that asks for a run. What it asks is in its front matter; what came of it hangs on its entries."""

    class State(models.TextChoices):
        OPEN = "open"
        CLOSED = "closed"
        MERGED = "merged"

    repository = models.CharField(max_length=200)
    """Full name of the repository it is for: owner/name."""
    number = models.PositiveIntegerField()
    installation = models.ForeignKey(Installation, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    state = models.CharField(max_length=8, choices=State.choices, default=State.OPEN)
    title = models.CharField(max_length=300, blank=True)
    author = models.CharField(max_length=120, blank=True)
    """GitHub login."""
    author_id = models.BigIntegerField(null=True, blank=True)
    body = models.TextField(blank=True)
    """Its description, whose block of fields says what it asks for."""
    draft = models.BooleanField(default=False)
    head_sha = models.CharField(max_length=40, blank=True)
    """Empty until GitHub has told of it, or was asked."""
    head_at = models.DateTimeField(null=True, blank=True)
    """Since when that commit is its head, at the latest; None: it was opened with it."""
    head_repository = models.CharField(max_length=400, blank=True)
    """Clone address of the branch; that of `repository` when the fork is gone."""
    fields = models.JSONField(default=dict, blank=True)
    """Its front matter, checked: track, hypothesis, expected effect, contact, architecture."""
    problems = models.JSONField(default=list, blank=True)
    """Sentences: what has to be put right before it becomes an entry. Empty when nothing."""
    entry = models.ForeignKey("leaderboard.Entry", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    """The entry of its head commit."""
    url = models.URLField(max_length=400, blank=True)
    seen_at = models.DateTimeField(null=True, blank=True)
    """GitHub's `updated_at` of the newest payload that was used: older ones come late and change nothing."""
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.UniqueConstraint(fields=["repository", "number"], name="one_row_per_pull_request"),
        ]

    def __str__(self) -> str:
        return f"{self.repository}#{self.number}"
