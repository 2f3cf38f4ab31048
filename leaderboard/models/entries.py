"""Entries: commits that are proposed for training."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.urls import reverse
from django.utils import timezone
from typing_extensions import TypedDict

from leaderboard.models.dicts import build_dict
from leaderboard.models.tracks import Track
from scheduler.models import Blob


def web_address(address: str) -> bool:
    return address.startswith(("https://", "http://"))


class EntryDict(TypedDict):
    id: int
    kind: str
    state: str
    reason: str
    title: str
    author: str
    repository: str
    sha: str
    architecture: str
    track: str
    hypothesis: str
    url: str
    is_held: bool
    obstacle: str  # why the track's policy does not approve it; empty if it does, or has not decided
    duplicate_of: int | None
    waits_for: int | None  # the entry of its family that goes first
    family: int | None  # the first entry of its family, which may be itself; null: not compared yet
    ruling: int | None  # by which it does not rank
    based_on: int | None  # the entry that it builds on, as its author says
    changed_files: list[str]
    bundle: str | None
    created_at: str
    page: str


class EntryQuerySet(models.QuerySet["Entry"]):
    def proposed(self) -> EntryQuerySet:
        return self.filter(state__in=[Entry.State.PROPOSED, Entry.State.SMOKE]).order_by("created_at")

    def approved(self) -> EntryQuerySet:
        return self.filter(state=Entry.State.APPROVED)


class Entry(models.Model):
    """One commit of one repository, proposed for training."""

    class Kind(models.TextChoices):
        ARCHITECTURE = "architecture"  # source files under trainer/models/ and nothing else: may hold a record
        OPEN = "open"  # changes more: shown as such
        NOTEBOOK = "notebook"
        MAIN = "main"

    class State(models.TextChoices):
        PROPOSED = "proposed"
        SMOKE = "smoke"
        APPROVED = "approved"
        REJECTED = "rejected"
        WITHDRAWN = "withdrawn"

    class Obstacle(models.TextChoices):
        """Why an entry is not approved by its track's policy."""

        HELD = "held", "A maintainer holds it."
        PAUSED = "paused", "Automatic approvals are paused."
        PYTHON = "python", "It is not an architecture that is traced, so a maintainer reads its Python."
        REOPENED = "reopened", "It was approved automatically before, so a maintainer decides."
        SMOKE = "smoke", "Its smoke test has not passed."
        CAPS = "caps", "It has no graph within the season's caps."
        RULING = "ruling", "By a ruling it does not rank."
        DUPLICATE = "duplicate", "Another entry has the same graph and recipe."
        FAMILY = "family", "A near entry goes first; this one is decided by itself once that has a verdict."
        BEHIND = "behind", "A near entry is behind the baseline, so only a maintainer lets this one go on."
        ANONYMOUS = "anonymous", "Its author is not known to GitHub or this site, so a maintainer decides."
        UNKNOWN = "unknown", "Its author has no scored entry yet, so a maintainer decides."
        AUTHOR_HOURS = "author_hours", "Its author's GPU-hours of a day are used; it is decided again by itself."
        SITE_HOURS = "site_hours", "The site's GPU-hours of a day are used; it is decided again by itself."

    MAIN_VARIANT = "main"
    """Variant of the entries that the site makes of main's commits. Other submissions cannot use it."""

    kind = models.CharField(max_length=12, choices=Kind.choices)
    state = models.CharField(max_length=10, choices=State.choices, default=State.PROPOSED)
    reason = models.CharField(max_length=500, blank=True)
    title = models.CharField(max_length=120)
    author = models.CharField(max_length=120, blank=True)
    repository = models.CharField(max_length=400)
    sha = models.CharField(max_length=40)
    architecture = models.CharField(max_length=80, help_text="Name in the commit's `trainer/models` dict.")
    config = models.JSONField(
        default=dict, blank=True, help_text="Configuration of the entry, merged over the track's."
    )
    variant = models.CharField(
        max_length=80,
        blank=True,
        default="",
        db_default="",
        help_text="Distinguishes entries of one commit with different configurations, such as those of a sweep.",
    )
    track = models.ForeignKey(Track, on_delete=models.PROTECT, related_name="entries")
    hypothesis = models.TextField(blank=True)
    url = models.URLField(blank=True)
    pull_request = models.ForeignKey(
        "leaderboard.PullRequest", null=True, blank=True, on_delete=models.SET_NULL, related_name="entries"
    )
    bundle = models.ForeignKey(
        Blob,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="Tar of the commit's `trainer/models/`.",
    )
    base_sha = models.CharField(
        max_length=40, blank=True, help_text="Merge base with `main`. Empty if there is no common history."
    )
    changed_files = models.JSONField(default=list, blank=True, help_text="Paths that differ from `base_sha`.")
    source_bytes = models.PositiveIntegerField(
        null=True, blank=True, help_text="Compressed size of `trainer/models/`, less that of main's own files."
    )
    notebooks = models.JSONField(
        default=list,
        blank=True,
        help_text="Parts of a notebook entry, in order, as `protocol.FileRef`. An approval covers their hashes.",
    )
    smoke_job = models.ForeignKey(
        "scheduler.Job",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="Job of the last smoke test.",
    )
    smoke = models.JSONField(
        default=dict,
        blank=True,
        help_text='Result of the smoke test: "passed" (None: inconclusive), then the fields of `SmokeResult`.',
    )
    smoke_sentence = models.CharField(max_length=500, blank=True, help_text="The smoke result in a sentence.")
    impact = models.IntegerField(default=0, help_text="Within a priority, higher goes first.")
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    approved_at = models.DateTimeField(null=True, blank=True)
    is_held = models.BooleanField(
        default=False, db_default=False, help_text="It is not approved automatically, and does not move up."
    )
    obstacle = models.CharField(max_length=12, choices=Obstacle.choices, blank=True, default="", db_default="")
    duplicate_of = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    family = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="members",
        help_text="The first entry of its family, which may be itself. Empty: not compared yet.",
    )
    waits_for = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="The entry of its family that goes first.",
    )
    based_on = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="The earlier entry that it builds on, as its author says.",
    )
    ruling = models.ForeignKey(
        "leaderboard.Ruling",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="entries",
        help_text="The ruling in force by which it does not rank.",
    )
    policy_approved_at = models.DateTimeField(
        null=True, blank=True, help_text="When its track's policy approved it. It stays after a withdrawal."
    )
    policy_hours = models.FloatField(
        default=0, db_default=0, help_text="GPU-hours that this took from its author's and the site's of a day."
    )
    created_at = models.DateTimeField(default=timezone.now)

    objects = EntryQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "entries"
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["repository", "sha", "architecture", "track", "variant"],
                name="one_entry_per_commit_and_architecture",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.title} ({self.sha[:8]})"

    def get_absolute_url(self) -> str:
        return reverse("entry", args=[self.pk])

    @property
    def is_own_code(self) -> bool:
        """Whether it changes nothing on main."""
        return self.kind == self.Kind.MAIN or (bool(self.base_sha) and not self.changed_files)

    @property
    def needs_person(self) -> bool:
        """Whether it waits for a decision that its track's policy leaves to a person."""
        is_manual = self.track.approval == Track.Approval.MAINTAINER or self.obstacle in FOR_PERSONS
        return self.state == self.State.PROPOSED and is_manual and not self.is_held

    @property
    def runs_python(self) -> bool:
        """Whether its own Python trains, and no graph: nobody approves it unread."""
        return self.kind != self.Kind.ARCHITECTURE or not self.track.is_traced

    @property
    def public_repository(self) -> str:
        """Return its URL; empty for a folder of the server."""
        return self.repository if web_address(self.repository) else ""

    def to_dict(self) -> EntryDict:
        """Return the row; select `track` with it."""
        return build_dict(
            self,
            EntryDict,
            repository=self.public_repository,
            track=self.track.slug,
            duplicate_of=self.duplicate_of_id,
            waits_for=self.waits_for_id,
            family=self.family_id,
            ruling=self.ruling_id,
            based_on=self.based_on_id,
            created_at=self.created_at.isoformat(),
            page=self.get_absolute_url(),
        )


FOR_PERSONS = (
    *(Entry.Obstacle.PYTHON, Entry.Obstacle.REOPENED, Entry.Obstacle.ANONYMOUS, Entry.Obstacle.UNKNOWN),
    Entry.Obstacle.BEHIND,
)
"""Obstacles that neither time nor another commit removes."""
