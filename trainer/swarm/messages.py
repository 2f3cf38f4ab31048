"""Messages of a swarm: the bodies of frames, validated strictly and with limits. Tensors follow them.

Methods, served by `trainer.swarm.worker` and `coordinator`:

    hello      worker -> coordinator    announces the worker, repeatedly, so that both notice a loss
    members    coordinator -> worker    the current members; calls of others are refused
    load       coordinator -> worker    load this stage, at this version, from one of these peers
    run        -> stage 0 -> stage 1    run a micro-batch; the reply is the gradient of its input
    position   coordinator -> worker    the version and frozen attempt; used after a restart
    ledger     coordinator -> worker    the micro-batches that the worker holds; unfreezes it
    drop       coordinator -> worker    reset this step's gradient sum and ledger
    prepare    coordinator -> worker    freeze, reduce the stage's gradient sums, and vote
    compare_replay   the same           return the distance of a peer's sum from a replay
    commit     coordinator -> worker    make the update
    snapshot   worker -> worker         a part of a worker's own sum
    state      -> worker, coordinator   weights and optimizer state of a stage
    shutdown   coordinator -> worker    the run is over
    sample     anyone -> coordinator    continue a text; the reply is a stream of `SampledText`
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError
from torch import Tensor

from trainer.protocol import Message, PeerAddress, Sha256
from trainer.protocol.version import MessageT
from trainer.swarm.config import SwarmConfig
from trainer.swarm.frames import MalformedFrameError, RpcFrame


def reject_negative(value: float) -> float:
    """Return the value; raise ValueError for a negative one. `Field(ge=0)` would reject NaN, too."""
    if value < 0:
        raise ValueError("negative")
    return value


PeerName = Annotated[str, Field(pattern=r"^[1-9A-HJ-NP-Za-km-z]{30,70}$")]  # A peer's name: base58, the hash of its key
Addresses = Annotated[tuple[PeerAddress, ...], Field(max_length=16)]  # Empty for a machine that cannot be dialed
Number = Annotated[int, Field(ge=0, lt=2**53)]
StageIndex = Annotated[int, Field(ge=0, lt=64)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MeasuredFloat = Annotated[float, Field(allow_inf_nan=True)]  # Not finite where the model has diverged
SquaredNorm = Annotated[MeasuredFloat, AfterValidator(reject_negative)]
Timeout = Annotated[float, Field(gt=0, le=86_400)]  # seconds


class Peer(Message):
    name: PeerName
    addresses: Addresses = ()


class Acknowledgement(Message):
    """A reply without content."""


class Hello(Message):
    version: Literal[1] = 1
    label: str = Field(default="", max_length=60)  # The owner's name for the machine
    addresses: Addresses = ()
    credential: str = Field(default="", max_length=4096)  # For this run, checked by the coordinator's `admit`
    preferred_stage: StageIndex | None = None  # Assigned if no other stage lacks a worker
    leaving: bool = False  # The worker wants to leave; it serves until it is no longer a member


class Welcome(Message):
    config: SwarmConfig
    member: bool  # Whether the worker is a member. Others wait for `load`, which comes between two steps.
    finished: bool = False
    every: float = Field(default=1.0, gt=0, le=600)  # Seconds until the next hello


class StepRequest(Message):
    """Base class of requests that belong to an attempt of a step."""

    attempt: Number
    step: Number


class Members(Message):
    attempt: Number
    stages: Annotated[tuple[tuple[Peer, ...], ...], Field(max_length=64)]
    joining: tuple[Peer, ...] = ()  # Workers that are loading a stage: they may read its state


class Load(StepRequest):
    stage: StageIndex
    sources: tuple[Peer, ...] = ()  # Peers that have the state, best first. Empty: build the stage from the seed


class Loaded(Message):
    parameters: Number
    slots: int = Field(ge=1, le=4096)  # Micro-batches that fit into memory at once


class ReplayTarget(Message):
    """The peer that stores a replay's gradients separately, and the number of the comparison."""

    peer: PeerName
    number: Number


class CachePosition(Message):
    """A text whose earlier tokens the stages remember: keys and values, or recurrent states."""

    name: str = Field(pattern=r"^[0-9a-f]{16}$")  # A new one starts a text
    start: Number  # Tokens that are in the caches. A worker with another number refuses with the code "no_cache".
    path: Annotated[tuple[PeerName, ...], Field(max_length=64)] = ()  # The peers with the caches, by stage


class RunRequest(Message):
    """Tensors: tokens `[B, T]`, targets `[B, T]` but for logits, and after stage 0 the hidden state `[B, T, width]`."""

    step: Number
    micro_batch: Number
    mode: Literal["learn", "nats", "logits"] = "learn"
    """The reply of `learn` is a gradient, of `nats` each target's `[B, T]`, of `logits` the next token's `[B, V]`."""
    need: tuple[int, ...] = ()  # Stages that lack this micro-batch; the others compute without accumulating
    timeout: Timeout  # For each stage
    replay: ReplayTarget | None = None
    """For a replay: no peer accumulates gradients, and this peer, which has to take part, stores them separately."""
    cache: CachePosition | None = None  # For `logits`, which need one: the tokens follow it


class StageReply(Message):
    """Tensors: the gradient of the hidden input, none from stage 0; or the mode's result."""

    path: tuple[PeerName, ...]  # The peers that computed, this stage first
    nats: MeasuredFloat = 0.0  # Sum over the micro-batch's targets
    targets: Number = 0
    later_seconds: Share = 0.0  # Seconds spent waiting for later stages


class DropStep(StepRequest):
    """Reset this step's gradients."""

    first_strike: bool = False  # The sum was wrong: verify gradients of later stages for a while


class HeldMicroBatch(Message):
    micro_batch: Number
    nats: MeasuredFloat = 0.0  # Sum of nats at the last stage; 0 at others
    targets: Number = 0


class Blame(Message):
    """A peer of a neighboring stage that sent an invalid message."""

    peer: PeerName
    why: str = Field(max_length=200)


class Ledger(Message):
    held: tuple[HeldMicroBatch, ...]
    blamed: Annotated[tuple[Blame, ...], Field(max_length=256)] = ()
    throughput: Share | None = None  # Tokens per second of its compute thread, as measured by itself


LedgersByStage = dict[int, dict[str, Ledger]]  # For each stage, its members and their ledgers


class PositionRequest(Message):
    digest: bool = False  # Whether to include the digest, which reads all weights


class Position(Message):
    stage: int | None
    step: Number
    frozen_attempt: Number | None  # The attempt in which the worker is frozen
    digest: Sha256 | None = None  # Of the weights at that version


class Prepare(StepRequest):
    held: tuple[Number, ...]  # The expected ledger, sorted
    peers: tuple[PeerName, ...]  # All peers of its stage including itself, in the order of the reduction
    timeout: Timeout


class Vote(Message):
    digest: Sha256  # Digest of the weights and the mean gradient
    squared_norm: SquaredNorm  # Squared norm of this stage's mean gradient
    norms: Annotated[tuple[tuple[PeerName, SquaredNorm], ...], Field(max_length=4096)] = ()
    """Squared norm of what the voter read of each peer's sum, including its own."""


class CompareReplay(StepRequest):
    """Compare the gradients of a replay with this peer's sum, while that peer is frozen."""

    peer: PeerName
    number: Number | None  # Of the replay. None: that peer holds no micro-batches, so its sum should be zeros
    timeout: Timeout


class ReplayDistance(Message):
    relative: MeasuredFloat  # ||a - b|| / ||b|| of the peer's sum a and the recomputed sum b
    finite: bool  # Whether the recomputed gradient is finite


class Commit(StepRequest):
    factor: Share  # Factor on the learning rate
    clip_scale: float = Field(gt=0, le=1)


class Committed(Message):
    step: Number  # The version after the update


class SumPart(StepRequest):
    start: Number
    stop: Number  # Range of parameters, numbered through the stage
    timeout: Timeout


class StateRequest(Message):
    stage: StageIndex
    step: Number


class StateTensor(Message):
    """One tensor of a state."""

    name: str = Field(max_length=300)


class Shutdown(Message):
    why: str = Field(default="", max_length=300)


class SampleRequest(Message):
    prompt: str = Field(max_length=4000)
    tokens: int = Field(ge=1, le=4096)  # Maximum; fewer if the model ends its text
    temperature: float = Field(default=0.8, ge=0, le=10)  # 0 takes the most likely token each time
    top_k: int | None = Field(default=None, ge=1, lt=2**31)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = Field(default=0, ge=0, lt=2**63)
    label: str = Field(default="", max_length=60)
    credential: str = Field(default="", max_length=4096)  # For this run and label, checked by the coordinator


class SampledText(Message):
    """The next piece of a text. The last one says why it ended."""

    text: str = Field(max_length=2**16)
    tokens: Number  # Sampled so far
    step: Number  # Version of the weights that computed the last token
    ended: Literal["", "length", "end of text"] = ""


def parse_message(kind: type[MessageT], frame: RpcFrame) -> MessageT:
    """Validate a frame's body as this message; raise `MalformedFrameError`."""
    try:
        return kind.model_validate_json(json.dumps(frame.body))  # as JSON, where tuples are lists
    except RecursionError:
        raise MalformedFrameError(f"{kind.__name__}: nested too deeply") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise MalformedFrameError(f"{kind.__name__}.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def to_frame(message: Message, *tensors: Tensor) -> RpcFrame:
    return RpcFrame(message.model_dump(mode="json"), tensors)
