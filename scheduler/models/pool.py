"""Nodes, their lending windows and join tokens, and the sponsors who lend them."""

from __future__ import annotations

from django.conf import settings
from django.core.validators import URLValidator
from django.db import models
from django.utils import timezone

LINK = URLValidator(schemes=["http", "https"])


class Node(models.Model):
    """A machine that runs jobs."""

    class State(models.TextChoices):
        NEW = "new"  # registered, has not polled yet
        TESTING = "testing"  # polls; no slot has passed the self-test yet
        ONLINE = "online"
        FAILING = "failing"  # gets no job: `fault` and `reason` say why (`scheduler.node_health`)
        DRAINING = "draining"  # finishes its job, takes no more
        PAUSED = "paused"
        OFFLINE = "offline"  # has not polled for a while
        BANNED = "banned"  # its token is rejected

    class Fault(models.TextChoices):
        """What a failing node failed at."""

        SELF_TEST = "self_test", "its self-test failed"
        JOB = "job", "its machine failed a job"
        OUTDATED = "outdated", "its agent is too old for the self-test"

    class Serves(models.TextChoices):
        EVERYONE = "everyone"
        CORE = "core", "core members only"
        TRACK = "track", "one track"

    class Available(models.TextChoices):
        ALWAYS = "always"
        WINDOWS = "windows", "in weekly windows"
        UNTIL = "until", "until a moment"  # "this weekend"

    class Packets(models.TextChoices):
        """Whether the node rephrases packets of the dataset swarm."""

        NEVER = "never"
        BETWEEN = "between", "between runs"
        ONLY = "only", "nothing else"

    name = models.CharField(max_length=80, unique=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)
    state = models.CharField(max_length=12, choices=State.choices, default=State.NEW)
    reason = models.CharField(max_length=500, blank=True, help_text="Why it is in this state.")
    fault = models.CharField(
        max_length=10, choices=Fault.choices, blank=True, default="", db_default="", help_text="Why it is failing."
    )
    self_tests = models.JSONField(
        default=dict, blank=True, db_default={}, help_text="The latest self-test of each slot, by its number."
    )
    trusted = models.BooleanField(default=False, help_text="May score: official results come from trusted nodes only.")
    labels = models.JSONField(default=list, blank=True)
    hardware = models.JSONField(default=dict, blank=True)
    token_hash = models.CharField(
        max_length=64,
        unique=True,
        null=True,
        blank=True,
        help_text="SHA-256 of the node's token. Empty if it was revoked.",
    )
    registered_at = models.DateTimeField(default=timezone.now)
    last_seen = models.DateTimeField(null=True, blank=True)
    failures = models.IntegerField(default=0, help_text="Jobs in a row that failed here because of the machine.")
    valid_in_a_row = models.IntegerField(default=0, help_text="Results in a row that agreed with known ones.")
    quota = models.PositiveIntegerField(default=1024, help_text="Jobs per day while it is not trusted.")
    rest_until = models.DateTimeField(
        null=True, blank=True, help_text="It gets no job before. Grows with its failures."
    )

    # Settings of its owner.
    serves = models.CharField(max_length=10, choices=Serves.choices, default=Serves.EVERYONE)
    serves_track = models.CharField(max_length=50, blank=True, help_text="The track it serves, if it serves one track.")
    packets = models.CharField(
        max_length=10,
        choices=Packets.choices,
        default=Packets.NEVER,
        help_text="Whether it may rephrase for campaigns.",
    )
    available = models.CharField(max_length=10, choices=Available.choices, default=Available.ALWAYS)
    available_until = models.DateTimeField(null=True, blank=True, help_text="If it is available until a moment.")
    timezone = models.CharField(max_length=64, default="UTC", help_text="IANA name of the time zone of its windows.")
    max_hours = models.FloatField(null=True, blank=True, help_text="Of one run; longer ones are handed on in between.")
    disk_bytes = models.BigIntegerField(
        null=True, blank=True, help_text="Disk space that its owner lends. Empty: all that is free."
    )
    shown = models.BooleanField(default=True, help_text="By name on the public pages; otherwise counted, not named.")
    slots = models.PositiveSmallIntegerField(
        default=1, help_text="Jobs at a time. The GPUs are shared evenly between them."
    )
    owner_labels = models.JSONField(
        default=list,
        blank=True,
        help_text="The owner's own labels. The labels are these and those that the node found.",
    )

    health = models.JSONField(default=dict, blank=True, help_text="The latest protocol.Health.")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Window(models.Model):
    """A weekly time in which a node is lent, in the node's own time zone."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="windows")
    weekday = models.PositiveSmallIntegerField(help_text="Of its start; 0 is Monday.")
    start = models.TimeField()
    end = models.TimeField(help_text="On the next day if it is not after the start. Equal to the start: a whole day.")

    class Meta:
        ordering = ["weekday", "start"]

    def __str__(self) -> str:
        return f"weekday {self.weekday}, {self.start:%H:%M} to {self.end:%H:%M}"


class JoinToken(models.Model):
    """A token with which one node registers, once."""

    token_hash = models.CharField(max_length=64, unique=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE)
    labels = models.JSONField(default=list, blank=True)
    trusted = models.BooleanField(default=False)
    for_packets = models.BooleanField(
        default=False, help_text="For a volunteer of the dataset swarm, who gets packets only."
    )
    renews = models.ForeignKey(
        Node,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="renewals",
        help_text="The known node that joins again with it.",
    )
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    used_by = models.ForeignKey(Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="join_tokens")

    def __str__(self) -> str:
        return f"join token until {self.expires_at:%Y-%m-%d %H:%M}"


class Sponsor(models.Model):
    """A user who lends nodes. `Node.shown` says, node by node, whether the name is public."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="sponsor")
    name = models.CharField(max_length=60)
    link = models.CharField(max_length=200, blank=True, validators=[LINK])
    since = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name", "pk"]

    def __str__(self) -> str:
        return self.name
