"""Installations, repositories and pull requests of GitHub."""

from __future__ import annotations

from django.db import models
from django.utils import timezone


class Installation(models.Model):
    """The site's GitHub App, installed for an account."""

    number = models.BigIntegerField(unique=True, help_text="GitHub's id of the installation.")
    account = models.CharField(max_length=120)
    suspended = models.BooleanField(default=False, help_text="Suspended or removed: the site sends no requests.")
    repositories = models.JSONField(
        default=list, blank=True, help_text="Full names of the repositories, as reported by GitHub."
    )
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.account} ({self.number})"


class GitHubRepository(models.Model):
    """The repository of GITHUB_REPOSITORY. GitHub's number of it stays when it is renamed or transferred."""

    configured = models.CharField(max_length=200, unique=True, help_text="The setting's name, in lower case.")
    number = models.BigIntegerField(help_text="GitHub's id of the repository.")
    name = models.CharField(max_length=200, help_text="Its full name now: owner/name.")

    class Meta:
        verbose_name = "GitHub repository"
        verbose_name_plural = "GitHub repositories"

    def __str__(self) -> str:
        return self.name


class PullRequest(models.Model):
    """A pull request that requests a run."""

    class State(models.TextChoices):
        OPEN = "open"
        CLOSED = "closed"
        MERGED = "merged"

    repository = models.CharField(max_length=200, help_text="Full name of the base repository: owner/name.")
    number = models.PositiveIntegerField()
    installation = models.ForeignKey(Installation, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    state = models.CharField(max_length=8, choices=State.choices, default=State.OPEN)
    title = models.CharField(max_length=300, blank=True)
    author = models.CharField(max_length=120, blank=True, help_text="GitHub login.")
    author_id = models.BigIntegerField(null=True, blank=True)
    body = models.TextField(blank=True, help_text="Description with the front matter.")
    draft = models.BooleanField(default=False)
    head_sha = models.CharField(max_length=40, blank=True, help_text="Empty until GitHub has reported it.")
    head_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Latest time at which the commit became the head. Null: since the pull request was opened.",
    )
    head_repository = models.CharField(
        max_length=400,
        blank=True,
        help_text="Clone URL of the branch; the base repository's URL if the fork was deleted.",
    )
    fields = models.JSONField(
        default=dict,
        blank=True,
        help_text="Validated front matter: track, hypothesis, expected effect, contact, architecture.",
    )
    problems = models.JSONField(
        default=list, blank=True, help_text="What to fix before it becomes an entry, one sentence each."
    )
    entry = models.ForeignKey(
        "leaderboard.Entry",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="Entry of the head commit.",
    )
    url = models.URLField(max_length=400, blank=True)
    seen_at = models.DateTimeField(
        null=True, blank=True, help_text="GitHub's `updated_at` of the newest payload. Older payloads are ignored."
    )
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-pk"]
        constraints = [models.UniqueConstraint(fields=["repository", "number"], name="one_row_per_pull_request")]

    def __str__(self) -> str:
        return f"{self.repository}#{self.number}"
