"""Node to server, under `/api/node/v1`: registering, polling, hardware and health."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from trainer.protocol.results import ProbeReading
from trainer.protocol.version import VERSION, Message


class Gpu(Message):
    """One GPU, as NVIDIA's driver tells it."""

    name: str = Field(max_length=80)
    memory_bytes: int = Field(default=0, ge=0)
    driver: str = Field(default="", max_length=40)
    uuid: str = Field(default="", max_length=80)


class Rephraser(Message):
    """What a node that rephrases does it with."""

    back_end: str = Field(max_length=80)
    models: tuple[Annotated[str, Field(max_length=200)], ...] | None = Field(default=None, max_length=64)
    """Those it serves; None: whatever a campaign asks for, it fetches."""
    campaign: str = Field(default="", max_length=80)
    """The only one that its owner wants to work for; empty: any."""


class Hardware(Message):
    """What the node found out about itself."""

    hostname: str = Field(max_length=200)
    platform: str = Field(max_length=200)
    python: str = Field(max_length=50)
    cpus: int
    memory_bytes: int
    disk_free_bytes: int
    gpus: tuple[str, ...] = ()
    """Their names."""
    sandboxes: tuple[str, ...] = ()
    """Sandbox drivers that work here; the first is the one in use."""
    gpu_details: tuple[Gpu, ...] = Field(default=(), max_length=64)
    """The same GPUs, in the same order."""
    cuda: str = Field(default="", max_length=20)
    """The newest CUDA that the driver knows."""
    network_bytes_per_second: float | None = Field(default=None, ge=0, lt=1e15)
    """As its own transfers to and from the site went lately, the slower direction; None until there was a large one."""
    found_labels: tuple[Annotated[str, Field(max_length=40)], ...] = Field(default=(), max_length=64)
    """What follows from all that: `2x3090`, `2x24gb`, `500gb`."""
    kinds: tuple[Annotated[str, Field(max_length=40)], ...] | None = Field(default=None, max_length=64)
    """Kinds of order that its agent can carry out; None: it does not say, and gets any."""
    rephraser: Rephraser | None = None
    """None: it has nothing to rephrase with, and `kinds` does not name it."""
    swarm_run: int | None = Field(default=None, ge=0, lt=2**63)
    """The only run whose seats it takes; None: any."""

    def gpus_of(self, lane: int, lanes: int) -> tuple[Gpu, ...]:
        """Return the GPUs of one of the node's lanes."""
        return split_evenly(self.gpu_details, lane, lanes)


T = TypeVar("T")


def split_evenly(things: Sequence[T], lane: int, lanes: int) -> tuple[T, ...]:
    """Return a lane's even share, lanes counted from 0: neighbours stay together, the first lanes get what is over."""
    cuts = (-(-number * len(things) // lanes) for number in (lane, lane + 1))
    return tuple(things[slice(*cuts)])


class Health(Message):
    """How the node is just now. None: it cannot tell."""

    temperature_celsius: float | None = Field(default=None, gt=-100, lt=1000)
    """Of its hottest GPU."""
    throttled: bool = False
    """Some GPU is slowed down by heat or by its power supply."""
    gpu_used_bytes: int | None = Field(default=None, ge=0)
    """Memory in use, all GPUs together."""
    idle_gpu: bool = False
    """A job runs, and its GPUs have had nothing to do for minutes."""
    probe: ProbeReading | None = None
    """What the last probe found here."""
    trouble: str = Field(default="", max_length=300)
    """Why it takes no job until this is mended, in a sentence; empty: nothing."""


class Register(Message):
    """POST /register, `Authorization: Bearer <join token>`."""

    version: int = VERSION
    name: str = Field(max_length=80)
    labels: tuple[str, ...] = ()
    hardware: Hardware


class RegisterVolunteer(Message):
    """POST /volunteer, without a token: join for rephrasing only, without an account. Answered with `Registered`.

    Whoever signs in gets a join token instead, and is credited: that is a `Register`.
    """

    version: int = VERSION
    name: str = Field(max_length=80)
    hardware: Hardware


class RegisterReply(Message):
    node: int
    token: str
    """The node's own credential, shown once; every later call carries it."""
    public_key: str
    """Base64 of the site's Ed25519 key; the agent pins it."""


class Poll(Message):
    """POST /poll, `Authorization: Bearer <node token>`: the node is free and asks what to do."""

    version: int = VERSION
    hardware: Hardware
    wait_seconds: float = Field(default=20, ge=0, le=60)
    """How long the server may hold the question open before it answers "idle"."""
    abandoned: tuple[int, ...] = ()
    """Leases that this node held before it was restarted: the server puts their jobs back in the queue at once."""
    lane: int = Field(default=0, ge=0, lt=64)
    """Which of the node's lanes is free, counted from 0."""
    lanes: int | None = Field(default=None, ge=1, le=64)
    """How many it runs; None: an agent that knows no lanes."""
    lanes_wished: int | None = Field(default=None, ge=1, le=64)
    """What the sponsor's command line says; None: as many as the site says."""
    health: Health | None = None


class Lease(Message):
    lease: int
    token: str
    """This lease's own short-lived credential; the job process never sees it."""
    seconds: float
    """The lease ends this long after its last heartbeat."""
    spec: str
    """JSON of a `JobSpec`, the signed bytes themselves."""
    signature: str
    """Base64, Ed25519."""


class PollReply(Message):
    """The server's answer to a poll. It sets the pace."""

    action: Literal["job", "idle", "pause", "stop"]
    wait_seconds: float = 0
    """Ask again after this long (plus jitter)."""
    reason: str = ""
    """A sentence for the sponsor."""
    lease: Lease | None = None
    lanes: int | None = None
    """Told to a node that runs another number of lanes: so many are wished. No job is given before it runs them."""


class ErrorDetail(Message):
    """Body of every answer of 400 and above."""

    detail: str
    """A sentence: what happened, what is safe, what to do."""
