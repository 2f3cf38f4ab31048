"""What peers of a swarm say to each other: the bodies of frames. Read strictly, with limits; tensors come beside them.

Workers and the coordinator call each other by these methods; `trainer.swarm.worker` and `coordinator` answer them:

    hello      worker -> coordinator    here I am; again and again, so that both notice who is gone
    members    coordinator -> worker    who belongs now; nobody else may call from then on
    load       coordinator -> worker    take this stage, at this version, from one of these
    run        -> stage 0 -> stage 1    a micro-batch's way down; the answer is the gradient's way up
    where      coordinator -> worker    which version, which promise: asked after a restart, changes nothing
    ledger     coordinator -> worker    whose gradients do you hold? Takes back a promise made in `prepare`
    drop       coordinator -> worker    forget this step's sum and ledger
    prepare    coordinator -> worker    hold still, add up all sums of your stage, and vote
    replayed   coordinator -> worker    how far is that peer's sum from what you have computed again?
    commit     coordinator -> worker    make the update
    snapshot   worker -> worker         a part of your own sum; `reduced`: of the sum of all that you added up
    state      -> worker, coordinator   weights and momenta of a stage
    bye        coordinator -> worker    the run is over
"""

from __future__ import annotations

import json
from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError
from torch import Tensor

from trainer.protocol import Message
from trainer.swarm.config import SwarmConfig
from trainer.swarm.frames import MalformedFrameError, RpcFrame

PeerName = Annotated[str, Field(pattern=r"^[1-9A-HJ-NP-Za-km-z]{30,70}$")]
"""A peer's name: base58, the hash of its key."""
Address = Annotated[str, Field(max_length=300, pattern=r"^/[\x21-\x7e]+$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Number = Annotated[int, Field(ge=0, lt=2**53)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Peer(Message):
    name: PeerName
    addresses: Annotated[tuple[Address, ...], Field(max_length=16)] = ()
    """None for a machine that nobody can dial."""


class Acknowledgement(Message):
    """Nothing more to say."""


class Hello(Message):
    version: Literal[1] = 1
    run: str = Field(max_length=100)
    label: str = Field(default="", max_length=60)
    """What its owner calls it."""
    addresses: Annotated[tuple[Address, ...], Field(max_length=16)] = ()
    credential: str = Field(default="", max_length=4096)
    """Of this run; the coordinator's `admits` decides."""
    wish: int | None = Field(default=None, ge=0, lt=64)
    """The stage it would like, if that is all the same to others."""
    memory: int = Field(default=0, ge=0, lt=2**53)
    """Bytes free for a stage."""
    leaving: bool = False
    """It would like to go, and stays until it is no member."""


class Welcome(Message):
    config: SwarmConfig
    member: bool
    """Whether it has a seat; who has none waits for `load`, which comes between two steps."""
    finished: bool = False
    every: float = Field(default=1.0, gt=0, le=600)
    """Seconds until the next hello."""
    patience: float = Field(default=30.0, gt=0, le=86_400)
    """Seconds that a peer is waited for before it counts as lost."""


class Members(Message):
    attempt: Number
    stages: Annotated[tuple[tuple[Peer, ...], ...], Field(max_length=64)]
    joining: tuple[Peer, ...] = ()
    """About to load: they may ask for a state."""


class Load(Message):
    attempt: Number
    stage: int = Field(ge=0, lt=64)
    step: Number
    """The version to be at."""
    sources: tuple[Peer, ...] = ()
    """Who has it, best first; none: make it from the seed, which gives version 0."""


class Loaded(Message):
    digest: Digest
    parameters: Number
    slots: int = Field(ge=1, le=4096)
    """Micro-batches that its memory can hold at once."""


class ReplayTarget(Message):
    """Who keeps a replayed gradient to itself, and for which comparison."""

    peer: PeerName
    number: Number


class RunRequest(Message):
    """Tensors: tokens `[B, T]`; with `targets` those `[B, T]`; behind stage 0 the hidden state `[B, T, width]`."""

    step: Number
    micro_batch: Number
    mode: Literal["learn", "nats", "logits"] = "learn"
    """`learn` brings gradients back; `nats` each target's `[B, T]`, `logits` those of the next token `[B, V]`."""
    need: tuple[int, ...] = ()
    """Stages whose gradients are missing; the others compute without adding."""
    patience: float = Field(gt=0, le=86_400)
    """Seconds for each stage on the way."""
    aside: ReplayTarget | None = None
    """A replay: nobody adds anything, and this peer, which must be on the way, keeps its gradients aside."""


class RunResult(Message):
    """Tensors: the gradient of the hidden state that came in, none from stage 0; or what the mode asks for."""

    path: tuple[PeerName, ...]
    """Who computed, this stage first."""
    nats: float = 0.0
    """Sum over the micro-batch's targets; not finite where the model is not."""
    targets: Number = 0
    below: Share = 0.0
    """Seconds spent waiting for the stages behind."""


class StepRequest(Message):
    attempt: Number
    step: Number


class DropStep(StepRequest):
    """Forget this step's gradients."""

    doubted: bool = False
    """The sum was wrong: have gradients from further down confirmed for a while."""


class HeldMicroBatch(Message):
    micro_batch: Number
    nats: float = 0.0
    """The last stage knows it; 0 at others."""
    targets: Number = 0


class Blame(Message):
    """A peer of a neighbouring stage that sent what no sound one would."""

    peer: PeerName
    why: str = Field(max_length=200)


class Ledger(Message):
    held: tuple[HeldMicroBatch, ...]
    blamed: Annotated[tuple[Blame, ...], Field(max_length=256)] = ()
    throughput: Share | None = None
    """Tokens a second of its lane, by its own count."""


class PositionRequest(Message):
    digest: bool = False
    """Whether the answer should have one: that looks at every byte."""


class Position(Message):
    stage: int | None
    step: Number
    promised: Number | None
    """The attempt it has voted in and not heard of since."""
    digest: Digest | None = None
    """Of the weights at that version."""


class Prepare(Message):
    attempt: Number
    step: Number
    held: tuple[Number, ...]
    """What its ledger must be, sorted."""
    peers: tuple[PeerName, ...]
    """All peers of its stage, itself too, sorted: sums are added up in this order."""
    patience: float = Field(gt=0, le=86_400)


class Vote(Message):
    digest: Digest
    """Of the summed gradient and the weights it will change."""
    squared_norm: float
    """Of the mean gradient of this stage; not finite where that is not."""
    norms: Annotated[tuple[tuple[PeerName, float], ...], Field(max_length=4096)] = ()
    """The squared norm of what it read of each peer's sum, its own too."""


class CompareReplay(Message):
    """Compare what you keep aside with this peer's sum. Asked while that holds still."""

    attempt: Number
    step: Number
    peer: PeerName
    number: Number
    patience: float = Field(gt=0, le=86_400)


class ReplayDistance(Message):
    of: float
    """||theirs - mine|| / ||mine||; not finite where one of them is not."""
    finite: bool
    """Whether what was computed again is."""


class Commit(Message):
    attempt: Number
    step: Number
    factor: Share
    """On the learning rate."""
    clip_scale: float = Field(gt=0, le=1)


class Committed(Message):
    step: Number
    """The version it is at now."""


class SumPart(Message):
    attempt: Number
    step: Number
    start: Number
    stop: Number
    """Parameters, counted through the stage."""
    patience: float = Field(gt=0, le=86_400)


class StateRequest(Message):
    stage: int = Field(ge=0, lt=64)
    step: Number


class StateTensor(Message):
    """One tensor of a state."""

    name: str = Field(max_length=300)


class Shutdown(Message):
    why: str = Field(default="", max_length=300)


M = TypeVar("M", bound=Message)


def parse_message(kind: type[M], frame: RpcFrame) -> M:
    """Return a frame's body as this message; raise Malformed for anything else."""
    try:
        return kind.model_validate_json(json.dumps(frame.body))  # as JSON: tuples may come as lists, and nothing else
    except ValidationError as error:
        first = error.errors()[0]
        raise MalformedFrameError(f"{kind.__name__}.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def to_frame(message: Message, *tensors: Tensor) -> RpcFrame:
    """Return a message as a frame."""
    return RpcFrame(message.model_dump(mode="json"), tensors)
