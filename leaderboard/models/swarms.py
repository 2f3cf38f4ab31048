"""Swarms: runs that many machines train together."""

from __future__ import annotations

import secrets
from typing import Any

from django.db import models
from django.utils import timezone

from leaderboard.models.runs import Run
from scheduler.models import Job, Node


def new_secret() -> str:
    return secrets.token_urlsafe(32)


class Swarm(models.Model):
    """The secret and the coordinator's addresses of a swarm run."""

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
        """Return the track's `stages`, `workers` of each, `minimum` and `patience`."""
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
    """One machine's place in a swarm, from its job to its end. A lost seat is never taken again."""

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
        """Return its name among its peers."""
        return f"seat-{self.job_id}"


class SwarmEvent(models.Model):
    """An event from the coordinator; a run's page is drawn and replayed from these."""

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
        at = round(self.at.timestamp(), 3)
        event: dict[str, Any] = {"id": self.pk, "at": at, "what": self.what, "step": self.step, "stage": self.stage}
        event |= {"peer": self.peer, "name": self.name, "why": self.why}
        return {**{name: value for name, value in event.items() if value not in (None, "")}, **self.data}
