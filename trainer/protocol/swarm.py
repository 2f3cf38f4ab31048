"""SWARM training: orders for the coordinator and for workers, and the worker's result."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trainer.protocol.files import Checkpoint, DatasetPin, Sha256
from trainer.protocol.version import Message

PeerAddress = Annotated[str, Field(max_length=300, pattern=r"^/[\x21-\x7e]+$")]
"""Such as `/ip4/203.0.113.5/tcp/7000/p2p/<peer>`."""


class SwarmOrder(Message):
    """Lead a swarm's run: decide who belongs and when a step counts, until the last one; then join the stages into an
    ordinary checkpoint. On a node that is trusted and can be dialled."""

    kind: Literal["swarm"] = "swarm"
    run: int
    dataset: DatasetPin
    config: dict[str, Any]
    """As in a `TrainOrder`; `swarm` in it has fields of `trainer.swarm.config.SwarmConfig`."""
    stages: int = Field(ge=1, le=64)
    minimum: int = Field(default=1, ge=1, le=1000)
    """Seats of every stage that are taken before the first step."""
    patience: float = Field(default=30.0, gt=0, le=3600)
    """Seconds after which a peer counts as lost."""
    resume: Checkpoint | None = None
    """Its stages' states, where an earlier coordinator has left any."""
    secret: str = Field(min_length=32, max_length=200)
    """What the credentials of this run's seats are made with (`trainer.swarm.credentials`)."""


class SeatOrder(Message):
    """Take a seat of a swarm's run: compute one stage for whoever brings a micro-batch, until the run is over."""

    kind: Literal["seat"] = "seat"
    run: int
    title: str = Field(default="", max_length=200)
    """For the volunteer."""
    coordinator: tuple[PeerAddress, ...] = Field(min_length=1, max_length=16)
    label: str = Field(max_length=60)
    credential: Sha256
    """What the coordinator lets this label in with, and no other."""


class WorkerResult(Message):
    """The result of a seat. Told by the volunteer: contribution is counted by the coordinator."""

    version: Literal[1] = 1
    stage: int | None = Field(default=None, ge=0, lt=64)
    """The last one; None: it never had any."""
    bytes_in: int = Field(default=0, ge=0, lt=2**63)
    bytes_out: int = Field(default=0, ge=0, lt=2**63)
    seconds: float = Field(default=0, ge=0, lt=1e9)
    why: str = Field(default="", max_length=300)
    """It ended."""
