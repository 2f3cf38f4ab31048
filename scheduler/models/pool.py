"""The pool: nodes and the tokens that let them in."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone


class Node(models.Model):
    """A machine that works for us."""

    class State(models.TextChoices):
        NEW = "new"  # registered, has not asked for work yet
        ONLINE = "online"
        DRAINING = "draining"  # finishes its job, takes no more
        PAUSED = "paused"
        OFFLINE = "offline"  # has not been heard of for a while
        BANNED = "banned"  # its token is refused

    class Serves(models.TextChoices):
        EVERYONE = "everyone"
        CORE = "core", "core members only"
        TRACK = "track", "one track"

    class Available(models.TextChoices):
        ALWAYS = "always"
        WINDOWS = "windows", "in weekly windows"
        UNTIL = "until", "until a moment"  # "this weekend"

    class Packets(models.TextChoices):
        """Of the dataset swarm."""

        NEVER = "never"
        BETWEEN = "between", "between runs"
        ONLY = "only", "nothing else"

    name = models.CharField(max_length=80, unique=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)
    state = models.CharField(max_length=12, choices=State.choices, default=State.NEW)
    reason = models.CharField(max_length=500, blank=True)
    """Why it is in this state, for its owner."""
    trusted = models.BooleanField(default=False, help_text="May score: official results come from trusted nodes only.")
    labels = models.JSONField(default=list, blank=True)
    hardware = models.JSONField(default=dict, blank=True)
    token_hash = models.CharField(max_length=64, unique=True, null=True, blank=True)
    """SHA-256 of the node's token; null when revoked."""
    registered_at = models.DateTimeField(default=timezone.now)
    last_seen = models.DateTimeField(null=True, blank=True)
    failures = models.IntegerField(default=0)
    """Jobs that failed here one after the other for reasons of the machine."""
    valid_in_a_row = models.IntegerField(default=0)
    """Results of its that agreed with known ones, since the last that did not (`scheduler.node_vetting`)."""
    quota = models.PositiveIntegerField(default=1024)
    """Jobs a day that it is given, while it is not trusted (`scheduler.node_quota`)."""
    rest_until = models.DateTimeField(null=True, blank=True)
    """It gets no job before; grows with `failures`, so that one broken machine does not eat the queue."""

    # What its owner wishes.
    serves = models.CharField(max_length=10, choices=Serves.choices, default=Serves.EVERYONE)
    serves_track = models.CharField(max_length=50, blank=True)
    """With `serves` track: the `Job.track` it works for."""
    packets = models.CharField(max_length=10, choices=Packets.choices, default=Packets.NEVER)
    """Whether it may rephrase for campaigns; its agent needs something to do that with."""
    available = models.CharField(max_length=10, choices=Available.choices, default=Available.ALWAYS)
    available_until = models.DateTimeField(null=True, blank=True)
    """With `available` until: the end of the burst."""
    timezone = models.CharField(max_length=64, default="UTC")
    """Its windows are told in this zone (IANA name)."""
    max_hours = models.FloatField(null=True, blank=True, help_text="Of one run; longer ones are handed on in between.")
    disk_bytes = models.BigIntegerField(null=True, blank=True)
    """What its owner lends of the disk; null lends all that is free."""
    shown = models.BooleanField(default=True, help_text="By name on the public pages; otherwise counted, not named.")
    slots = models.PositiveSmallIntegerField(default=1)
    """Jobs at a time: 1 gives every job all GPUs, more share them out evenly."""
    owner_labels = models.JSONField(default=list, blank=True)
    """The owner's own labels; `labels` are those and what the node found out about itself."""

    # How it is.
    health = models.JSONField(default=dict, blank=True)
    """A `protocol.Health`, as of its last word."""

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Window(models.Model):
    """A weekly stretch in which a node is lent, in the node's own time zone."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="windows")
    weekday = models.PositiveSmallIntegerField()
    """On which it begins: 0 is Monday."""
    start = models.TimeField()
    end = models.TimeField()
    """Not after `start`: on the next day. Equal to it: a whole day."""

    class Meta:
        ordering = ["weekday", "start"]

    def __str__(self) -> str:
        return f"weekday {self.weekday}, {self.start:%H:%M} to {self.end:%H:%M}"


class JoinToken(models.Model):
    """Lets one node in, once; expires."""

    token_hash = models.CharField(max_length=64, unique=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE)
    labels = models.JSONField(default=list, blank=True)
    trusted = models.BooleanField(default=False)
    for_packets = models.BooleanField(default=False)
    """Lets in a volunteer of the dataset swarm, who gets nothing but packets."""
    renews = models.ForeignKey(Node, null=True, blank=True, on_delete=models.CASCADE, related_name="renewals")
    """For a node that is known already: it joins again as itself, with a new token."""
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    used_by = models.ForeignKey(Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="join_tokens")

    def __str__(self) -> str:
        return f"join token until {self.expires_at:%Y-%m-%d %H:%M}"
