"""Messages of a node to the server, under `/api/node/v1`: registration, polls, hardware, health."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

from pydantic import Field

from trainer.protocol.results import ProbeReading
from trainer.protocol.version import VERSION, Count, Identifier, Label, Message, Name, Seconds, Sentence


class Gpu(Message):
    """One GPU, as NVIDIA's driver reports it."""

    name: str = Field(max_length=80)
    memory_bytes: Count = 0
    driver: str = Field(default="", max_length=40)
    uuid: str = Field(default="", max_length=80)
    problem: str | None = Field(default=None, max_length=300)  # why no job may use it, in a sentence


class Rephraser(Message):
    """The back end that a node rephrases with."""

    back_end: str = Field(max_length=80)
    models: tuple[Name, ...] | None = Field(default=None, max_length=64)
    """The models it serves; None: it downloads the model of any campaign."""
    campaign: str = Field(default="", max_length=80)  # the only campaign it accepts; empty: any


class Hardware(Message):
    """Hardware and software that the node detected."""

    hostname: Name
    platform: Name
    python: str = Field(max_length=50)
    cpus: int = Field(ge=0, lt=2**31)
    memory_bytes: Count
    disk_free_bytes: Count
    gpus: tuple[Name, ...] = Field(default=(), max_length=64)  # names
    sandboxes: tuple[Label, ...] = Field(default=(), max_length=16)  # working sandbox drivers; the first is in use
    gpu_details: tuple[Gpu, ...] = Field(default=(), max_length=64)  # the same GPUs, in the same order
    unusable_gpus: tuple[Gpu, ...] | None = Field(default=None, max_length=64)
    """GPUs beside these, each with the `problem` for which no job may use it."""
    cuda: str = Field(default="", max_length=20)  # the newest CUDA version that the driver supports
    network_bytes_per_second: float | None = Field(default=None, ge=0, lt=1e15)
    """Measured on recent transfers with the server, the slower direction; None before the first large transfer."""
    found_labels: tuple[Label, ...] = Field(default=(), max_length=64)
    """Derived from the hardware: `2x3090`, `2x24gb`, `500gb`."""
    kinds: tuple[Label, ...] | None = Field(default=None, max_length=64)
    """Kinds of order that its agent supports; None: any."""
    rephraser: Rephraser | None = None  # None: it cannot rephrase, and `kinds` does not include "rephrase"
    swarm_run: Identifier | None = None  # the only swarm run it joins; None: any
    installation: Label = ""
    """Changes when the agent starts and when its GPUs change: the node then proves itself again."""


T = TypeVar("T")


def split_evenly(items: Sequence[T], part: int, parts: int) -> tuple[T, ...]:
    """Return contiguous part `part` (from 0) of `parts` nearly equal ones; the first parts get the remainder."""
    bounds = (-(-number * len(items) // parts) for number in (part, part + 1))
    return tuple(items[slice(*bounds)])


class Health(Message):
    """The node's current condition. None: unknown."""

    temperature_celsius: float | None = Field(default=None, gt=-100, lt=1000)  # of the hottest GPU
    throttled: bool = False  # a GPU is slowed down by heat or by its power supply
    gpu_used_bytes: Count | None = None  # memory in use on all GPUs together
    idle_gpu: bool = False  # a job is running, but its GPUs have been idle for minutes
    probe: ProbeReading | None = None  # the result of the last probe on this node
    trouble: str = Field(default="", max_length=300)
    """Why the node takes no jobs until this is fixed, in a sentence; empty: no problem."""


class Register(Message):
    """POST /register, `Authorization: Bearer <join token>`."""

    version: int = Field(default=VERSION, ge=0, lt=2**31)
    name: str = Field(max_length=80)
    labels: tuple[Label, ...] = Field(default=(), max_length=64)
    hardware: Hardware


class RegisterVolunteer(Message):
    """POST /volunteer, without a token: join for rephrasing only, without an account. The reply is a `RegisterReply`.

    Volunteers with an account use a join token and `Register` instead, and get credit.
    """

    version: int = Field(default=VERSION, ge=0, lt=2**31)
    name: str = Field(max_length=80)
    hardware: Hardware


class RegisterReply(Message):
    node: Identifier
    token: Name  # the node's credential, sent once; required in every later call
    public_key: Name  # Base64 of the site's Ed25519 key; the agent pins it


class Poll(Message):
    """POST /poll, `Authorization: Bearer <node token>`: a free node requests work."""

    version: int = Field(default=VERSION, ge=0, lt=2**31)
    hardware: Hardware
    wait_seconds: float = Field(default=20, ge=0, le=60)
    """Not used any more. Servers of earlier releases held the request open for so long."""
    abandoned: tuple[Identifier, ...] = Field(default=(), max_length=1024)
    """Leases that this node held before it was restarted. The server requeues their jobs at once."""
    lane: int = Field(default=0, ge=0, lt=64)  # index of the free slot, from 0
    lanes: int | None = Field(default=None, ge=1, le=64)  # how many slots the node runs; None: an agent without slots
    lanes_wished: int | None = Field(default=None, ge=1, le=64)
    """Number of slots set on the sponsor's command line; None: the server decides."""
    health: Health | None = None


class Lease(Message):
    lease: Identifier
    token: Name  # short-lived credential of this lease; never visible to the job process
    seconds: Seconds  # the lease expires this long after its last heartbeat
    spec: str = Field(max_length=2**24)  # JSON of a `JobSpec`, exactly as signed
    signature: Name  # Base64, Ed25519


class PollReply(Message):
    """The server's reply to a poll, which also sets the poll interval."""

    action: Literal["job", "idle", "pause", "stop"]
    wait_seconds: Seconds = 0  # poll again after this long, plus jitter
    reason: Sentence = ""  # a sentence for the sponsor
    lease: Lease | None = None
    lanes: int | None = Field(default=None, ge=1, le=64)
    """Set if the node runs another number of slots than configured: the number to run before it gets a job."""
    disk_bytes: Count | None = None
    """Disk space that the owner lends, for jobs and caches together. With a job, None: all that is free."""


class ErrorDetail(Message):
    """Body of every reply with a status of 400 or above."""

    detail: str = Field(max_length=10_000)  # what happened, what is safe and what to do, in a sentence
