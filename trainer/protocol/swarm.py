"""SWARM training: orders for the coordinator and the workers, and the worker's result."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainer.protocol.files import Checkpoint, DatasetPin, Sha256
from trainer.protocol.version import Count, Identifier, JsonObject, Message, Name

PeerAddress = Annotated[str, Field(max_length=300, pattern=r"^/[\x21-\x7e]+$")]
"""A multiaddress such as `/ip4/203.0.113.5/tcp/7000/p2p/<peer>`."""


class SwarmOrder(Message):
    """Coordinate a swarm run: admit workers, commit steps, and at the end merge the stages into an ordinary checkpoint.

    Needs a trusted node that accepts incoming connections.
    """

    kind: Literal["swarm"] = "swarm"
    run: Identifier
    dataset: DatasetPin
    config: JsonObject  # As in a `TrainOrder`; its key `swarm` holds fields of `trainer.swarm.config.SwarmConfig`.
    stages: int = Field(ge=1, le=64)
    minimum: int = Field(default=1, ge=1, le=1000)  # Workers per stage required before the first step
    patience: float = Field(default=30.0, gt=0, le=3600)  # Seconds after which a peer counts as lost
    resume: Checkpoint | None = None  # Stage states saved by an earlier coordinator
    secret: str = Field(min_length=32, max_length=200)
    """Key from which the credentials of this run's workers are derived (`trainer.swarm.credentials`)."""


class WorkerOrder(Message):
    """Work for a swarm run: compute one pipeline stage for other peers until the run ends."""

    kind: Literal["seat"] = "seat"
    run: Identifier
    title: Name = ""  # Of the run, shown to the volunteer
    coordinator: tuple[PeerAddress, ...] = Field(min_length=1, max_length=16)
    label: str = Field(max_length=60)
    credential: Sha256  # Admits this label, and no other, to the coordinator


class SwarmSampleOrder(Message):
    """Continue a prompt with the model that a swarm trains, through its coordinator. Sends metrics of kind "text"."""

    kind: Literal["swarm_sample"] = "swarm_sample"
    run: Identifier
    coordinator: tuple[PeerAddress, ...] = Field(max_length=16)  # Empty if it has left since
    label: str = Field(max_length=60)
    credential: Sha256  # Lets this label sample text, and nothing else
    prompt: str = Field(max_length=4000)
    tokens: int = Field(ge=1, le=4096)  # maximum; fewer if the model ends its text
    temperature: float = Field(default=0.8, ge=0, le=10)
    seed: int = Field(default=0, ge=0, lt=2**63)


class WorkerResult(Message):
    """Reported by the volunteer; credit follows the coordinator's own count."""

    version: Literal[1] = 1
    stage: int | None = Field(default=None, ge=0, lt=64)  # The last assigned stage; None: never assigned
    bytes_in: Count = 0
    bytes_out: Count = 0
    seconds: float = Field(default=0, ge=0, lt=1e9)
    why: str = Field(default="", max_length=300)  # Why the work ended
