"""Orders: what a job asks a node to do, one model per kind, and the signed job spec around it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trainer.protocol.files import BaseWeights, Checkpoint, DatasetPin, FileRef
from trainer.protocol.rephrase import RephraseOrder
from trainer.protocol.swarm import SeatOrder, SwarmOrder
from trainer.protocol.version import VERSION, Message


class ProbeSpec(Message):
    """How to measure: training steps of the site's small model (`trainer.accounting.probe`), never of an entry's."""

    seconds: float = Field(gt=0, le=60)
    """Of measuring; starting the process comes on top."""
    width: int = Field(default=256, ge=64, le=16384, multiple_of=64)
    sequence_length: int = Field(default=256, ge=8, le=2**20)
    batch: int = Field(default=8, ge=1, le=4096)
    """Rows a step."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    threads: int | None = Field(default=None, ge=1, le=1024)


class TrainOrder(Message):
    kind: Literal["train"] = "train"
    dataset: DatasetPin
    config: dict[str, Any]
    """The run's configuration, as in the TOML file of `dailytrain train` (without corpus, tokenizer and folders)."""
    resume: Checkpoint | None = None
    probe: ProbeSpec | None = None
    base: BaseWeights | None = None
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
    base: BaseWeights | None = None
    """As in that order."""
    claimed: Checkpoint
    """Where it ended, as its node said. The entry's code never sees it."""


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


class GenerateOrder(Message):
    """Continue a prompt with a run's model (`trainer.inference.generate`). The text comes as metrics of kind "text"."""

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


class JobLimits(Message):
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
    limits: JobLimits
    issued_at: float
    """Seconds since 1970, the server's clock."""
