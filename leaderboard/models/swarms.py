"""Runs that many machines train together: their seats, and everything that happened, in order."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Any

from django.db import models
from django.utils import timezone

from leaderboard.models.runs import Run
from scheduler.models import Job, Node


def new_secret() -> str:
    return secrets.token_urlsafe(32)


class Swarm(models.Model):
    """What a run of a swarm track has beside its row: the secret that lets machines in, and where to knock."""

    run = models.OneToOneField(Run, on_delete=models.CASCADE, related_name="swarm")
    secret = models.CharField(
        max_length=64,
        default=new_secret,
        help_text="Sent to the coordinator. Seats get credentials derived from it. Never displayed.",
    )
    addresses = models.JSONField(
        default=list, blank=True, help_text="Addresses of the coordinator. Empty if there is none."
    )

    def __str__(self) -> str:
        return f"swarm of run {self.run_id}"

    @property
    def size(self) -> dict[str, Any]:
        """Return the track's word on it: `stages`, `workers` of each, `minimum`, `patience`."""
        return {**SIZES, **self.run.track.swarm}

    @property
    def wanted(self) -> int:
        return int(self.size["stages"]) * int(self.size["workers"])


SIZES: dict[str, Any] = {"stages": 2, "workers": 2, "minimum": 1, "patience": 30.0}


class SeatQuerySet(models.QuerySet["Seat"]):
    def waiting(self) -> SeatQuerySet:
        return self.filter(job__state=Job.State.QUEUED)

    def taken(self) -> SeatQuerySet:
        return self.filter(job__state=Job.State.LEASED)


class Seat(models.Model):
    """One machine's place in a swarm, from its job to its end: a place that was lost is never taken again."""

    swarm = models.ForeignKey(Swarm, on_delete=models.CASCADE, related_name="seats")
    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="seat")
    node = models.ForeignKey(Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    name = models.CharField(max_length=80, blank=True, help_text="Name of the node when it took the seat.")
    peer = models.CharField(max_length=16, blank=True, help_text="Suffix of its peer id. Empty until it has joined.")
    stage = models.PositiveSmallIntegerField(null=True, blank=True, help_text="Current stage. Null before and after.")
    rows = models.BigIntegerField(default=0, help_text="Rows of text in its gradients, as counted by the coordinator.")
    bytes_in = models.BigIntegerField(
        default=0, help_text="As counted by the machine, like `bytes_out` and `tokens_per_second`."
    )
    bytes_out = models.BigIntegerField(default=0)
    tokens_per_second = models.FloatField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    objects = SeatQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"{self.label} of run {self.swarm.run_id}"

    @property
    def label(self) -> str:
        """Return what its peers know it by."""
        return f"seat-{self.job_id}"


class SwarmEvent(models.Model):
    """Something that the coordinator told: the record that a run's page is drawn from, and played again."""

    class What(models.TextChoices):
        ADDRESS = "address"  # a coordinator is there
        START = "start"
        JOIN = "join"
        LEAVE = "leave"
        BAN = "ban"
        MOVE = "move"
        STEP = "step"
        CHECKPOINT = "checkpoint"
        ROLLBACK = "rollback"
        END = "end"

    swarm = models.ForeignKey(Swarm, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(help_text="Time of the coordinator's clock.")
    what = models.CharField(max_length=10, choices=What.choices)
    step = models.BigIntegerField(default=0)
    stage = models.PositiveSmallIntegerField(null=True, blank=True)
    peer = models.CharField(max_length=16, blank=True)
    name = models.CharField(max_length=80, blank=True, help_text="Name of the seat's node.")
    why = models.CharField(max_length=200, blank=True)
    data = models.JSONField(
        default=dict,
        blank=True,
        help_text="Step: `loss`, `seconds`, `tokens_per_second`, `held`, `bytes_in`, `bytes_out`. Move: `source`.",
    )

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"{self.what} at step {self.step} of run {self.swarm.run_id}"

    def to_dict(self) -> dict[str, Any]:
        """Return it for the page's script."""
        told: dict[str, Any] = {"id": self.pk, "at": seconds(self.at), "what": self.what, "step": self.step}
        told |= {"stage": self.stage} if self.stage is not None else {}
        told |= {name: value for name in ("peer", "name", "why") if (value := getattr(self, name))}
        return {**told, **self.data}


def seconds(at: datetime) -> float:
    return round(at.timestamp(), 3)
