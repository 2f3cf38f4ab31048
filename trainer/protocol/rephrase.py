"""Dataset swarm: rephrasing sessions and their packets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainer.protocol.files import Sha256
from trainer.protocol.version import Count, Identifier, Message, Name, Seconds, Sentence

Style = Literal["easy", "medium", "hard", "qa", "faq", "math", "table", "tutorial"]
Thresholds = Annotated[dict[str, Annotated[float, Field(gt=-1e12, lt=1e12)]], Field(max_length=100)]


class Sampling(Message):
    """Sampling parameters of a campaign's model."""

    temperature: float = Field(default=0.8, ge=0, le=2)
    top_p: float = Field(default=0.95, gt=0, le=1)
    max_tokens: int = Field(default=2048, ge=1, le=32768)  # per output
    top_k: int | None = Field(default=None, ge=1, le=1000)  # None: all tokens; OpenAI's own API has no such parameter


class RephraseOrder(Message):
    """Run a session of a campaign: take packets, rephrase their chunks, submit them, until none or no time is left."""

    kind: Literal["rephrase"] = "rephrase"
    campaign: str = Field(max_length=80)  # slug; the campaign's page is `/campaigns/<slug>/`
    model: Name  # name on the Hugging Face Hub, or another name under which a back end serves it
    revision: str = Field(default="", max_length=80)  # empty: not pinned
    sampling: Sampling = Sampling()
    styles: tuple[Style, ...] = Field(min_length=1, max_length=8)
    prompt_version: int = Field(ge=1, lt=2**31)  # version of `trainer.rephrase.prompts`
    language: str = Field(default="en", pattern=r"^[a-z]{2,3}$|^$")
    """ISO 639 code of sources and outputs; empty: each output in the language of its source."""
    thresholds: dict[Style, Thresholds] | None = None
    """Overrides of the defaults of `trainer.rephrase.checks`, as written by `dailytrain rephrase calibrate`."""
    speculative_tokens: int | None = Field(default=None, ge=1, le=64)
    """Tokens that vLLM proposes at once, copied from prompt and text so far. The model verifies them, so the outputs'
    distribution stays the same. None: no speculative decoding."""
    needs_gigabytes: float | None = Field(default=None, gt=0, lt=10_000)
    """GPU memory that the model needs; decides whether a volunteer's GPUs serve it together or each on its own."""


class Chunk(Message):
    """About 300 tokens of a document, cut at the end of a sentence."""

    index: Count  # in its document, from 0
    text: str = Field(min_length=1, max_length=40_000)
    sha256: Sha256  # hash of the text in UTF-8
    styles: tuple[Style, ...] = Field(min_length=1, max_length=8)
    """Styles still missing; a retried packet lists only those."""


class Packet(Message):
    """A document, or some chunks of a long document."""

    packet: Identifier
    document: Name  # human-readable origin
    chunks: tuple[Chunk, ...] = Field(min_length=1, max_length=256)


class TakePackets(Message):
    """POST /packets/take, under the session's lease.

    The reply starts with packets that the lease holds and `held` does not name, because an earlier reply may be lost.
    """

    count: int = Field(ge=1, le=256)  # maximum number of new packets
    held: tuple[Identifier, ...] = Field(default=(), max_length=4096)
    """Packets that the client has, including those whose submission is not yet confirmed."""


class TakePacketsReply(Message):
    packets: tuple[Packet, ...] = Field(default=(), max_length=4352)
    wait_seconds: Seconds = 0  # if there are no packets now: ask again after this long
    done: Sentence = ""
    """Why this session gets no more packets (campaign paused or finished, volunteer excluded); else empty."""


class RephraseOutput(Message):
    """One chunk in one style."""

    chunk: Count
    style: Style
    source_sha256: Sha256
    text: str = Field(default="", max_length=100_000)  # cleaned up (`checks.clean_output`)
    sha256: Sha256  # hash of the text in UTF-8
    ended: Literal["stop", "length", "none"] = "stop"
    """"length": truncated at `max_tokens`. "none": no text; `trouble` has the reason."""
    trouble: str = Field(default="", max_length=300)
    """A reason of `trainer.rephrase.checks`: why there is no text ("prompt_too_long"), or why the volunteer's checks
    rejected the last attempt; empty: none."""
    tokens: int = Field(default=0, ge=0, lt=2**31)  # tokens generated, as counted by the back end
    tries: int = Field(default=1, ge=0, le=100)
    """Number of attempts until the volunteer's own checks passed or it gave up."""


class RephrasedPacket(Message):
    """A submitted packet: one output for every requested chunk and style, and how they were generated."""

    packet: Identifier
    prompt_version: int = Field(ge=1, lt=2**31)
    model: Name
    revision: str = Field(default="", max_length=80)
    sampling: Sampling
    back_end: Name = ""  # `vllm`, `endpoint` or `transformers`, with its version if known
    outputs: tuple[RephraseOutput, ...] = Field(max_length=1024)


class SubmitPackets(Message):
    """POST /packets/submit. A packet that was submitted before under this lease only gets the same verdict again."""

    results: tuple[RephrasedPacket, ...] = Field(min_length=1, max_length=256)


class OutputVerdict(Message):
    """The server's verdict on one output, by the same checks."""

    chunk: Count
    style: Style
    accepted: bool
    reasons: tuple[Sentence, ...] = Field(default=(), max_length=100)  # reasons of `trainer.rephrase.checks`


class PacketVerdict(Message):
    packet: Identifier
    state: Literal["taken", "refused", "gone"]
    """"taken": each output was checked. "refused": the envelope does not match the packet, see `reasons`. "gone": this
    lease no longer holds the packet; nothing was stored."""
    reasons: tuple[Sentence, ...] = Field(default=(), max_length=100)
    outputs: tuple[OutputVerdict, ...] = Field(default=(), max_length=1024)


class SubmitPacketsReply(Message):
    """One verdict for each result, in the same order."""

    verdicts: tuple[PacketVerdict, ...] = Field(max_length=256)


class RephraseResult(Message):
    """Reported by the volunteer; credit follows the server's own verdicts."""

    version: Literal[1] = 1
    packets: Count  # submitted
    outputs: Count
    accepted: Count  # accepted outputs, by the server's verdicts
    tokens: Count  # generated, including discarded attempts
    seconds: float = Field(ge=0, lt=1e9)
    back_end: Name = ""
