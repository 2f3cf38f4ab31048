"""What the server, the agent and the processes it starts say to each other. Versioned, frozen, checked on both sides.

Agents are older than their site, or as old, never newer. So that a site can move on before its nodes do:

- What nodes send is read strictly: a field that the site does not know is refused.
- The site's answers may hold fields that an older agent does not know: it passes over them (`heard`).
- A signed spec is read strictly, from the very bytes that were signed: nobody carries out a part of an order. What is
  None is not written (`encode`), so a new field that is None by default reaches an older agent only in a job that needs
  it; that agent hands the job back, asks to be updated, and has run nothing.
- A new kind of order goes to agents that know it (`Hardware.kinds`).

So a new optional field (None) and a new kind keep `VERSION`. Anything else raises it, and a node of another version is
told to update (`Register.version`, `Poll.version`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

VERSION: Final = 1

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Cause = Literal["model", "infrastructure"]
"""Whose fault a failure is: the entry's ("model": it counts), ours or the node's ("infrastructure": it is retried)."""


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# --- files ---------------------------------------------------------------------------------------------------------


class FileRef(Message):
    """A file by content. Its bytes are at `GET /api/node/v1/leases/<lease>/blobs/<sha256>`.

    After a break `Range: bytes=<first>-` asks for the rest; whoever does not know ranges sends all of them again.
    """

    path: str = Field(max_length=200)
    """Where it belongs, relative to the folder it is part of; forward slashes, never `..`."""
    sha256: Sha256
    size: int = Field(ge=0)


class Checkpoint(Message):
    """All it takes to go on, or to re-score: the files of one folder `checkpoints/step-XXXXXXXX`."""

    step: int = Field(ge=0)
    files: tuple[FileRef, ...]


class Base(Message):
    """Weights that a run starts from: what another run ended with."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    """What `run.json` calls it, under `from`."""
    run: FileRef
    """Its `run.json`."""
    checkpoint: Checkpoint


class DatasetPin(Message):
    """A dataset by name and by hash. A node whose copy has another hash refuses the job."""

    corpus: str
    """`python-library`, `fineweb-edu` or `files:<glob>`."""
    tokenizer: str
    """`bpe:<vocabulary size>` (trained on the corpus), `gpt2:<folder>` or a `tokenizer.json`."""
    limit_bytes: int | None = None
    """Only this much text is taken from the start of the corpus; None takes all."""
    hash: Sha256


# --- the node's speed, measured by the site's own code beside a training --------------------------------------------


class Probe(Message):
    """How to measure: training steps of a small plain model of the site's (`trainer.probe`), never of an entry's."""

    seconds: float = Field(gt=0, le=60)
    """Of measuring; starting the process comes on top."""
    width: int = Field(default=256, ge=64, le=16384, multiple_of=64)
    sequence_length: int = Field(default=256, ge=8, le=2**20)
    batch: int = Field(default=8, ge=1, le=4096)
    """Rows a step."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    threads: int | None = Field(default=None, ge=1, le=1024)


class ProbeReading(Message):
    """What one measurement found."""

    tokens_per_second: float = Field(gt=0, lt=1e15)
    """By the median step."""
    spread: float = Field(ge=0, lt=1e6)
    """Interquartile range of the steps' times over their median."""
    steps: int = Field(ge=1)
    loss: float
    """Of the second step, nats per token: the same wherever the same was computed."""


class Probes(Message):
    """Under "probes" in the result of a training whose order asks for it."""

    version: Literal[1] = 1
    before: ProbeReading | None = None
    """None: it did not work on this node; its log says why."""
    after: ProbeReading | None = None


# --- orders: what a job asks for, one model per kind ----------------------------------------------------------------


class TrainOrder(Message):
    kind: Literal["train"] = "train"
    dataset: DatasetPin
    config: dict[str, Any]
    """The run's configuration, as in the TOML file of `dailytrain train` (without corpus, tokenizer and folders)."""
    resume: Checkpoint | None = None
    probe: Probe | None = None
    base: Base | None = None
    """What it starts from; None: from scratch. No configuration says so: its `from` is not read on a node."""


class ScoreOrder(Message):
    kind: Literal["score"] = "score"
    dataset: DatasetPin
    run: FileRef
    """`run.json` of the run."""
    checkpoint: Checkpoint
    suite: tuple[str, ...] = ()
    """lm-eval task names; a task whose data this node lacks is left out and named."""
    suite_limit: int | None = Field(default=None, ge=1)
    """Only the first so many items of each task; None takes all."""


class ReplayOrder(Message):
    """Train a stretch of a run once more, and compare what comes out with what another node said came out."""

    kind: Literal["replay"] = "replay"
    dataset: DatasetPin
    config: dict[str, Any]
    """As in the `TrainOrder` of that run."""
    start: Checkpoint | None = None
    """Where the stretch begins; None: with the first weights."""
    base: Base | None = None
    """As in that order."""
    claimed: Checkpoint
    """Where it ended, as its node said. The entry's code never sees it."""


class Replayed(Message):
    """The result of a replay."""

    version: Literal[1] = 1
    step: int = Field(ge=1)
    exact: bool
    """The weights are the same to the last bit."""
    deviation: float = Field(ge=0)
    """|replayed - claimed| over the distance that the claimed weights moved in the stretch."""


class SmokeOrder(Message):
    """Find an entry's mistakes on a CPU, before anything trains on a GPU (`trainer.smoke`)."""

    kind: Literal["smoke"] = "smoke"
    config: dict[str, Any]
    """As in the `TrainOrder` of the run it is about, whose size is counted: what is trained here is small."""
    tokenizer: str
    """As in a `DatasetPin`: how many tokens that run's vocabulary has."""
    memory_bytes: float | None = Field(default=None, gt=0)
    """Of the machines that run is for: their GPUs', all together, or the job's; None: not known."""
    peak: float | None = Field(default=None, gt=0)
    """FLOP/s of those; None: not known."""


class SmokeCheck(Message):
    name: Literal["starts", "fits", "learns", "causal"]
    passed: bool
    text: str = Field(max_length=1000)
    """A sentence where it failed, else what was seen."""


Count = Annotated[float, Field(ge=0, lt=1e30)]


class Smoked(Message):
    """The result of a smoke run. Advisory: the entry's code ran beside it. None: not known, or not reached."""

    version: Literal[1] = 1
    passed: bool
    sentence: str = Field(max_length=1000)
    checks: tuple[SmokeCheck, ...] = Field(max_length=8)
    file: str = Field(default="", max_length=200)
    """Where in the entry's files it failed, with `line` and the text there; empty where nobody can say."""
    line: int = Field(default=0, ge=0)
    code: str = Field(default="", max_length=200)
    hints: tuple[Annotated[str, Field(max_length=500)], ...] = Field(default=(), max_length=8)
    """What is no mistake, and worth a look."""
    parameters: Count | None = None
    """Of the run's size, not of the small model; so are the next six."""
    parameters_embedding: Count | None = None
    flops_per_token: Count | None = None
    state_bytes: Count | None = None
    """Of weights, gradients and optimizer."""
    tokens_per_step: Count | None = None
    depth: Count | None = None
    sequence_length: Count | None = None
    steps: Count | None = None
    """Of the small model; so is all that follows."""
    train_seconds: Count | None = None
    """Of one core."""
    tokens_per_second: Count | None = None
    memory_bytes: Count | None = None
    first_loss: Count | None = None
    """On dev, nats a token: before the first step, and after the last."""
    last_loss: Count | None = None
    sandbox: str = Field(default="", max_length=40)
    seconds: Count = 0


class NotebookOrder(Message):
    """Run one notebook of the entry's files, from its first cell to its last (`trainer.notebook`)."""

    kind: Literal["notebook"] = "notebook"
    notebook: FileRef
    """Its place in the entry's files, and exactly the bytes that were approved."""
    dataset: DatasetPin | None = None
    """Laid out for it, without the test split; None: it brings all it needs."""
    part: int = Field(default=1, ge=1)
    """Of so many `parts`, each a job of its own."""
    parts: int = Field(default=1, ge=1)
    seconds: float = Field(gt=0)
    """All its cells together."""
    model: tuple[FileRef, ...] = Field(default=(), max_length=500)
    """What the part before left in the folder `model/`, paths below that; this one finds it there."""


class Executed(Message):
    """The result of a notebook. Beside it stay with the job: `executed.ipynb`, and `model/...`."""

    version: Literal[1] = 1
    cells: int = Field(ge=0)
    """Code cells that were run."""
    seconds: float = Field(ge=0)
    left: int = Field(default=0, ge=0)
    """Files in `model/`."""
    left_bytes: int = Field(default=0, ge=0)


class GenerateOrder(Message):
    """Let a run's model go on with a prompt (`trainer.generate`). The text comes as metrics of kind "text"."""

    kind: Literal["generate"] = "generate"
    dataset: DatasetPin
    """Whose tokenizer it reads with."""
    run: FileRef
    """`run.json` of the run."""
    checkpoint: Checkpoint
    prompt: str = Field(max_length=4000)
    tokens: int = Field(ge=1, le=4096)
    """At most so many; fewer where the model ends its text."""
    temperature: float = Field(default=0.8, ge=0, le=10)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = Field(default=0, ge=0, lt=2**63)


class Generated(Message):
    """The result of a `GenerateOrder`. The entry's code ran beside it: nothing is decided by it."""

    version: Literal[1] = 1
    tokens: int = Field(ge=0, le=4096)
    seconds: float = Field(ge=0, lt=1e9)
    """From the loaded model to the last token."""
    ended: Literal["length", "end of text"]


# --- rephrasing: a sitting of a volunteer's, and the packets it works through ----------------------------------------

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


class Packets(Message):
    packets: tuple[Packet, ...] = ()
    wait_seconds: float = 0
    """Nothing waits just now: ask again after this long."""
    done: str = ""
    """A sentence why there will be none in this sitting (paused, finished, the volunteer is set aside); else empty."""


class Output(Message):
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


class Rephrased(Message):
    """A packet as it is handed in: one output for every chunk and style asked for, and what they were made with."""

    packet: int
    prompt_version: int = Field(ge=1)
    model: str = Field(max_length=200)
    revision: str = Field(default="", max_length=80)
    sampling: Sampling
    back_end: str = Field(default="", max_length=200)
    """`vllm`, `endpoint` or `transformers`, with a version where it is known."""
    outputs: tuple[Output, ...] = Field(max_length=1024)


class SubmitPackets(Message):
    """POST /packets/submit. A packet that was handed in under this lease before gets the same answer, and no more."""

    results: tuple[Rephrased, ...] = Field(min_length=1, max_length=256)


class Judged(Message):
    """The site's word on one output, by the same checks."""

    chunk: int
    style: Style
    accepted: bool
    reasons: tuple[str, ...] = ()
    """Of `trainer.rephrase.checks`."""


class Verdict(Message):
    packet: int
    state: Literal["taken", "refused", "gone"]
    """"taken": judged output by output. "refused": the envelope does not fit, `reasons` say how. "gone": this lease
    does not hold it any more; nothing was kept."""
    reasons: tuple[str, ...] = ()
    outputs: tuple[Judged, ...] = ()


class Accepted(Message):
    """One verdict for every result, in their order."""

    verdicts: tuple[Verdict, ...]


class Sat(Message):
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


# --- swarms: one model trained by machines that come and go (`trainer.swarm`) ----------------------------------------

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


class Seated(Message):
    """The result of a seat. Told by the volunteer: contribution is counted by the coordinator."""

    version: Literal[1] = 1
    stage: int | None = Field(default=None, ge=0, lt=64)
    """The last one; None: it never had any."""
    bytes_in: int = Field(default=0, ge=0, lt=2**63)
    bytes_out: int = Field(default=0, ge=0, lt=2**63)
    seconds: float = Field(default=0, ge=0, lt=1e9)
    why: str = Field(default="", max_length=300)
    """It ended."""


Order = Annotated[
    TrainOrder
    | ScoreOrder
    | ReplayOrder
    | SmokeOrder
    | NotebookOrder
    | GenerateOrder
    | RephraseOrder
    | SwarmOrder
    | SeatOrder,
    Field(discriminator="kind"),
]


class Limits(Message):
    """What the sandbox allows the job's processes, all of them together. Units: seconds, bytes."""

    wall_seconds: float
    memory_bytes: int
    disk_bytes: int
    processes: int


class JobSpec(Message):
    """One job for one node, signed by the site (Ed25519 over the exact bytes of its JSON)."""

    version: Literal[1] = VERSION
    job: int
    lease: int
    node: int
    attempt: int
    release: FileRef
    """The site's release of `trainer/`: a tar of the package."""
    entry: FileRef | None = None
    """The entry's files: a tar of `trainer/models/` only, laid over the release."""
    order: Order
    limits: Limits
    issued_at: float
    """Seconds since 1970, the server's clock."""


# --- node <-> server, under /api/node/v1 ----------------------------------------------------------------------------


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
        return share(self.gpu_details, lane, lanes)


Thing = TypeVar("Thing")


def share(things: Sequence[Thing], lane: int, lanes: int) -> tuple[Thing, ...]:
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


class Volunteer(Message):
    """POST /volunteer, without a token: join for rephrasing only, without an account. Answered with `Registered`.

    Whoever signs in gets a join token instead, and is credited: that is a `Register`.
    """

    version: int = VERSION
    name: str = Field(max_length=80)
    hardware: Hardware


class Registered(Message):
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


class Action(Message):
    """The server's answer to a poll. It sets the pace."""

    action: Literal["job", "idle", "pause", "stop"]
    wait_seconds: float = 0
    """Ask again after this long (plus jitter)."""
    reason: str = ""
    """A sentence for the sponsor."""
    lease: Lease | None = None
    lanes: int | None = None
    """Told to a node that runs another number of lanes: so many are wished. No job is given before it runs them."""


# --- lease -> server, under /api/node/v1/leases/<lease>, `Authorization: Bearer <lease token>` -----------------------


class Heartbeat(Message):
    """POST /heartbeat."""

    phase: Literal["preparing", "running", "uploading"]
    seconds: float
    """Wall seconds the job's processes have run under this lease, metered by the agent."""
    health: Health | None = None


class HeartbeatReply(Message):
    stop: Literal["", "finish", "cancel"] = ""
    """"finish": keep the next checkpoint, upload it, hand the job back. "cancel": kill it now, nothing is kept."""
    reason: str = ""


class Metrics(Message):
    """POST /metrics: lines of `metrics.jsonl`. Batches are numbered from 1 within a lease; a repeat does nothing."""

    sequence: int = Field(ge=1)
    rows: tuple[dict[str, Any], ...] = Field(max_length=500)


class LogChunk(Message):
    """POST /log: text of the job's output, at a byte offset within this lease; a repeat does nothing."""

    offset: int = Field(ge=0)
    text: str = Field(max_length=64_000)


class Acknowledged(Message):
    """How much the server has: the last sequence number, or the byte after the last."""

    received: int


class Have(Message):
    """POST /blobs: which of these does the server still want? Then `PUT /blobs/<sha256>` sends one, as raw bytes.

    A large one may come in pieces, in order, each with `Content-Range: bytes <first>-<last>/<size>` and answered with
    `Acknowledged`, how far the server has it. `HEAD /blobs/<sha256>` asks for that after a break: `Upload-Offset`.
    """

    files: tuple[FileRef, ...]


class Wanted(Message):
    sha256: tuple[Sha256, ...]


class Uploaded(Message):
    """POST /checkpoints: every file has been sent; the checkpoint counts from now on."""

    checkpoint: Checkpoint
    files: tuple[FileRef, ...] = ()
    """Small files that stay with the job: `run.json`, so that others can start from a checkpoint of a run that goes on,
    and its weights can be released."""


class Finish(Message):
    """POST /finish: the end of a lease, once."""

    outcome: Literal["done", "failed", "released"]
    """"released": not finished, not failed; the job goes back to the queue and on from its last checkpoint."""
    cause: Cause = "infrastructure"
    reason: str = Field(default="", max_length=500)
    """A sentence that the contributor understands."""
    result: dict[str, Any] = {}
    """The kind's own: `result.json` of a training and its `Probes`, the JSON of `dailytrain score`, `Replayed`,
    `Smoked`, `Executed`, `Generated`, `Sat`, `Seated`."""
    files: tuple[FileRef, ...] = ()
    """Files that stay with the job (`run.json`, what a notebook left in `model/`), uploaded like blobs."""
    seconds: float | None = None
    """As in the heartbeat, once nothing runs any more; None: the last heartbeat's word stands."""


class Refusal(Message):
    """Body of every answer of 400 and above."""

    detail: str
    """A sentence: what happened, what is safe, what to do."""


Heard = TypeVar("Heard", bound=Message)


def encode(message: Message) -> str:
    """Canonical JSON: what is signed and hashed. Optional fields that are None are left out."""
    return message.model_dump_json(exclude_none=True)


def heard(kind: type[Heard], content: str | bytes) -> Heard:
    """Read an answer of the site's, which may be newer than we are: what we do not know, at any depth, is passed over.

    Raises pydantic's ValidationError. Never for a signed spec.
    """
    return kind.model_validate_json(content, extra="ignore")
