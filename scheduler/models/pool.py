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
    """Results of its that agreed with known ones, since the last that did not (`scheduler.vetting`)."""
    rest_until = models.DateTimeField(null=True, blank=True)
    """It gets no job before; grows with `failures`, so that one broken machine does not eat the queue."""

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class JoinToken(models.Model):
    """Lets one node in, once; expires."""

    token_hash = models.CharField(max_length=64, unique=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE)
    labels = models.JSONField(default=list, blank=True)
    trusted = models.BooleanField(default=False)
    renews = models.ForeignKey(Node, null=True, blank=True, on_delete=models.CASCADE, related_name="renewals")
    """For a node that is known already: it joins again as itself, with a new token."""
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    used_by = models.ForeignKey(Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="join_tokens")

    def __str__(self) -> str:
        return f"join token until {self.expires_at:%Y-%m-%d %H:%M}"
