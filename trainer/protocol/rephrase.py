"""Dataset swarm: rephrasing sessions and the packets they work through."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.protocol.files import Sha256
from trainer.protocol.version import Message

Style = Literal["easy", "medium", "hard", "qa"]


class Sampling(Message):
    """How a campaign's model is asked to write."""

    temperature: float = Field(default=0.8, ge=0, le=2)
    top_p: float = Field(default=0.95, gt=0, le=1)
    max_tokens: int = Field(default=2048, ge=1, le=32768)
    """Of one answer."""


class RephraseOrder(Message):
    """Sit down for a campaign: take packets, rephrase their chunks, hand them in, until none is left or time is up."""

    kind: Literal["rephrase"] = "rephrase"
    campaign: str = Field(max_length=80)
    """Its slug: its page is `/rephrase/<slug>/`."""
    model: str = Field(max_length=200)
    """A name at the Hub, or any other that a volunteer's back end serves it under."""
    revision: str = Field(default="", max_length=80)
    """Empty: not pinned."""
    sampling: Sampling = Sampling()
    styles: tuple[Style, ...] = Field(min_length=1, max_length=4)
    prompt_version: int = Field(ge=1)
    """Of `trainer.rephrase.prompts`."""
    language: str = Field(default="en", pattern=r"^[a-z]{2,3}$|^$")
    """ISO 639 code of source and outputs; empty: each output in the language of its source."""
    thresholds: dict[Style, dict[str, float]] | None = None
    """What differs from the start values of `trainer.rephrase.checks`, as `dailytrain rephrase calibrate` writes it."""


class Chunk(Message):
    """About 300 tokens of a document, cut at a sentence's end."""

    index: int = Field(ge=0)
    """In its document, counted from 0."""
    text: str = Field(min_length=1, max_length=40_000)
    sha256: Sha256
    """Of the text in UTF-8."""
    styles: tuple[Style, ...] = Field(min_length=1, max_length=4)
    """Those still wanted: a packet that is tried again asks only for what it lacks."""


class Packet(Message):
    """A document, or some chunks of a long one."""

    packet: int
    document: str = Field(max_length=200)
    """Where it is from, for people."""
    chunks: tuple[Chunk, ...] = Field(min_length=1, max_length=256)


class TakePackets(Message):
    """POST /packets/take, under the sitting's lease.

    What the lease holds and `held` does not name comes first in the answer, once more: an answer may have been lost.
    """

    count: int = Field(ge=1, le=256)
    """New ones, at most."""
    held: tuple[int, ...] = Field(default=(), max_length=4096)
    """Packets in hand, those whose handing in is not yet confirmed among them."""


class TakePacketsReply(Message):
    packets: tuple[Packet, ...] = ()
    wait_seconds: float = 0
    """Nothing waits just now: ask again after this long."""
    done: str = ""
    """A sentence why there will be none in this sitting (paused, finished, the volunteer is set aside); else empty."""


class RephraseOutput(Message):
    """One chunk in one style."""

    chunk: int = Field(ge=0)
    style: Style
    source_sha256: Sha256
    text: str = Field(default="", max_length=100_000)
    """Cleaned up (`checks.clean`)."""
    sha256: Sha256
    """Of the text in UTF-8."""
    ended: Literal["stop", "length", "none"] = "stop"
    """"length": `max_tokens` cut it off. "none": nothing was written, `trouble` says why."""
    trouble: str = Field(default="", max_length=300)
    """A reason of `trainer.rephrase.checks`: why nothing was written ("prompt_too_long"), or what the volunteer's own
    checks have against the last of its tries; empty: none."""
    tokens: int = Field(default=0, ge=0, lt=2**31)
    """Written by the model, as its back end counts."""
    tries: int = Field(default=1, ge=0, le=100)
    """How often the model was asked before the volunteer's own checks were content, or it stopped trying."""


class RephrasedPacket(Message):
    """A packet as it is handed in: one output for every chunk and style asked for, and what they were made with."""

    packet: int
    prompt_version: int = Field(ge=1)
    model: str = Field(max_length=200)
    revision: str = Field(default="", max_length=80)
    sampling: Sampling
    back_end: str = Field(default="", max_length=200)
    """`vllm`, `endpoint` or `transformers`, with a version where it is known."""
    outputs: tuple[RephraseOutput, ...] = Field(max_length=1024)


class SubmitPackets(Message):
    """POST /packets/submit. A packet that was handed in under this lease before gets the same answer, and no more."""

    results: tuple[RephrasedPacket, ...] = Field(min_length=1, max_length=256)


class OutputVerdict(Message):
    """The site's word on one output, by the same checks."""

    chunk: int
    style: Style
    accepted: bool
    reasons: tuple[str, ...] = ()
    """Of `trainer.rephrase.checks`."""


class PacketVerdict(Message):
    packet: int
    state: Literal["taken", "refused", "gone"]
    """"taken": judged output by output. "refused": the envelope does not fit, `reasons` say how. "gone": this lease
    does not hold it any more; nothing was kept."""
    reasons: tuple[str, ...] = ()
    outputs: tuple[OutputVerdict, ...] = ()


class SubmitPacketsReply(Message):
    """One verdict for every result, in their order."""

    verdicts: tuple[PacketVerdict, ...]


class RephraseResult(Message):
    """The result of a sitting. Told by the volunteer: credit follows the site's own verdicts."""

    version: Literal[1] = 1
    packets: int = Field(ge=0)
    """Handed in."""
    outputs: int = Field(ge=0)
    accepted: int = Field(ge=0)
    """Outputs, by the site's verdicts."""
    tokens: int = Field(ge=0)
    """Written, those thrown away among them."""
    seconds: float = Field(ge=0, lt=1e9)
    back_end: str = Field(default="", max_length=200)
