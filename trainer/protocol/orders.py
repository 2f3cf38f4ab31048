"""Orders: the work of a job, one class per kind, and the signed job spec that contains them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainer.protocol.files import MAX_HOSTS, BaseWeights, Checkpoint, DatasetPin, FileRef, GraphFiles, HostName, Sha256
from trainer.protocol.rephrase import RephraseOrder
from trainer.protocol.swarm import SwarmOrder, SwarmSampleOrder, WorkerOrder
from trainer.protocol.version import VERSION, Count, Identifier, JsonObject, Message, Name, Seconds


class ProbeSpec(Message):
    """A measurement of a node's speed by training steps of our own small model (`trainer.accounting.probe`)."""

    seconds: float = Field(gt=0, le=60)  # measuring time, without starting the process
    width: int = Field(default=256, ge=64, le=16384, multiple_of=64)
    sequence_length: int = Field(default=256, ge=8, le=2**20)
    batch: int = Field(default=8, ge=1, le=4096)  # rows per step
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    threads: int | None = Field(default=None, ge=1, le=1024)


class TrainOrder(Message):
    kind: Literal["train"] = "train"
    dataset: DatasetPin
    config: JsonObject
    """The run's configuration, as in the TOML file of `dailytrain train` (without corpus, tokenizer and folders)."""
    graph: GraphFiles | None = None  # what is trained; None: the Python of the entry, in the sandbox
    resume: Checkpoint | None = None
    probe: ProbeSpec | None = None
    base: BaseWeights | None = None  # What the run starts from; None: from scratch. Nodes ignore `from` in `config`.
    upload_seconds: float | None = Field(default=None, gt=0, lt=1e12)
    """Shortest time between two uploads of checkpoints while the run goes on. None: each is uploaded. The last one of a
    lease always is."""


class ScoreOrder(Message):
    kind: Literal["score"] = "score"
    dataset: DatasetPin
    run: FileRef  # `run.json` of the run
    checkpoint: Checkpoint
    graph: GraphFiles | None = None  # as in the `TrainOrder` of that run
    limit_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    """Score only so much of the test split, a fixed uniform sample of its documents. None: all."""
    test_secret: Sha256 | None = None
    """Draws that sample (`dailytrain draw`). For trusted nodes only, until the season has ended. None: public order."""
    reference: FileRef | None = None
    """Losses of the season's baseline on the same text (`losses.npy` of its own scoring), for the look-ahead check."""
    suite: tuple[Name, ...] = Field(default=(), max_length=1000)
    """Benchmark tasks. One whose files are not all in `suite_files` is skipped and reported."""
    suite_files: tuple[FileRef, ...] | None = Field(default=None, max_length=500)  # the season's evaluation data
    suite_limit: int | None = Field(default=None, ge=1, lt=2**31)
    """Use only the first so many items of each task. None: all."""


class ReplayOrder(Message):
    """Repeat a segment of a run and compare the resulting checkpoints with those that another node claimed."""

    kind: Literal["replay"] = "replay"
    dataset: DatasetPin
    config: JsonObject  # as in the `TrainOrder` of that run
    graph: GraphFiles | None = None  # likewise
    start: Checkpoint | None = None  # start of the segment; None: the initial weights
    base: BaseWeights | None = None  # as in that order
    claimed: Checkpoint  # End of the segment, as claimed by the other node. Never visible to the entry's code.
    middle: Checkpoint | None = None
    """A claimed checkpoint in the segment. The replay compares its own with it and goes on from its own."""
    first: Checkpoint | None = None
    """The run's first claimed checkpoint, which is replayed from the initial weights as well. None: it is in the
    segment."""


class SmokeOrder(Message):
    """Trace an entry, and find its mistakes on a CPU before it trains on a GPU (`trainer.smoke`).

    The result's files are those of `GraphFiles`, in the folder `graph`.
    """

    kind: Literal["smoke"] = "smoke"
    config: JsonObject
    """As in the `TrainOrder` of the run. Parameters are counted at this size; the test trains a small model."""
    tokenizer: Name  # as in a `DatasetPin`
    vocabulary_size: int | None = Field(default=None, ge=2, lt=2**31)
    """Of the season's dataset. None: follows from `tokenizer`."""
    trace_only: bool = False  # for code of the site: trains no small model
    memory_bytes: float | None = Field(default=None, gt=0, lt=1e30)
    """GPU memory of the run's target machines, all GPUs together, or the job's memory limit; None: unknown."""
    peak: float | None = Field(default=None, gt=0, lt=1e30)  # peak FLOP/s of those machines; None: unknown


class NotebookOrder(Message):
    """Run one of the entry's notebooks from its first to its last cell (`trainer.notebook`)."""

    kind: Literal["notebook"] = "notebook"
    notebook: FileRef  # its path among the entry's files, and the hash of the approved bytes
    dataset: DatasetPin | None = None  # provided without the test split; None: the notebook needs no dataset
    part: int = Field(default=1, ge=1, lt=2**31)  # Part number, from 1 to `parts`. Each part is a job.
    parts: int = Field(default=1, ge=1, lt=2**31)
    seconds: float = Field(gt=0, lt=1e12)  # time limit of all cells together
    model: tuple[FileRef, ...] = Field(default=(), max_length=500)
    """Files that the previous part left in the folder `model/`, with paths below it. They are restored there."""
    hosts: Annotated[tuple[HostName, ...], Field(min_length=1, max_length=MAX_HOSTS)] | None = None
    """From which it may fetch by HTTPS, subdomains included; None: it has no network."""


class GenerateOrder(Message):
    """Continue a prompt with a run's model (`trainer.inference.generate`). Sends metrics of kind "text"."""

    kind: Literal["generate"] = "generate"
    dataset: DatasetPin  # whose tokenizer it reads with
    run: FileRef  # `run.json` of the run
    checkpoint: Checkpoint
    graph: GraphFiles | None = None  # as in the `TrainOrder` of that run
    prompt: str = Field(max_length=4000)
    tokens: int = Field(ge=1, le=4096)  # maximum; fewer if the model ends its text
    temperature: float = Field(default=0.8, ge=0, le=10)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = Field(default=0, ge=0, lt=2**63)


class SelfTestOrder(Message):
    """The node proves itself: it trains a step of a tiny model and scores it, in the way of the other jobs."""

    kind: Literal["self_test"] = "self_test"


Order = Annotated[
    TrainOrder
    | ScoreOrder
    | ReplayOrder
    | SmokeOrder
    | NotebookOrder
    | GenerateOrder
    | SelfTestOrder
    | RephraseOrder
    | SwarmOrder
    | WorkerOrder
    | SwarmSampleOrder,
    Field(discriminator="kind"),
]


class JobLimits(Message):
    """Sandbox limits for all of the job's processes together. Units: seconds, bytes."""

    wall_seconds: Seconds
    """A training of a graph may take longer while it writes metrics: twice as long as at its last line."""
    memory_bytes: Count
    disk_bytes: Count
    processes: Count


class JobSpec(Message):
    """One job for one node, signed by the server (Ed25519 over the exact bytes of its JSON)."""

    version: Literal[1] = VERSION
    job: Identifier
    lease: Identifier
    node: Identifier
    attempt: Count
    release: FileRef  # the server's release of `trainer/`: a tar of the package
    entry: FileRef | None = None  # the entry's files: a tar with only `trainer/models/`, extracted over the release
    order: Order
    limits: JobLimits
    issued_at: Seconds  # Unix time in seconds, by the server's clock
