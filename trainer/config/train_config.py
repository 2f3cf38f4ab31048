"""A run's configuration: one dataclass, from a TOML or JSON file, from flags, or from both (flags win).

    arch = "gpt"
    budget = "180s"
    seed = 1

    [model]             # fields of the architecture's own Config; `depth` sets the default of the others
    depth = 4

    [recipe.matrices]   # fields of the architecture's recipe, see `trainer.config.recipe_overrides`
    learning_rate = 0.01

    [train]             # what else changes the results: `TrainArgs` below
    batch = 8

The same as flags: `--arch gpt --budget 180s --model.depth 4 --train.batch 8`. Everything else at the top level does not
change results: folders (the dataset's hash counts, not its path), `checkpoint_every`, `keep`, `milestones`, `logger`,
`threads`.
Missing values are computed from the device and the budget in `trainer.config.resolve`, printed and saved.

`corpus` is one of `trainer.data.corpora`: `python-docs`, `files:PATH`, `rephrased:OWNER/NAME@SHA256` for the
published dataset of a rephrasing campaign, and others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from trainer.accounting.budget import Budget
from trainer.data.sizes import parse_size
from trainer.errors import UserError
from trainer.optim.lora_args import LoraArgs

DEFAULT_CORPUS = "python-docs"  # part of the package
COMPARISON_CORPUS = "python-packages"  # of `try`: more text, and recorded results rest on it
DEFAULT_TOKENIZER = "bpe:8192"
SHORT_TEXT = 16 * 2**20  # default bytes of text for a CPU run of less than ten minutes
SHARDED = ("fsdp", "zero2")  # strategies that shard the weights


class ConfigError(UserError):
    """The configuration is invalid. The message is one line."""


@dataclass(frozen=True)
class TrainArgs:
    """Settings that change a run's results, in addition to the architecture and its recipe."""

    sequence_length: int | None = None
    """Tokens in a row. Computed: 256 on a CPU, 2048 on a GPU."""
    batch: int | None = None
    """Rows in one optimizer step. Computed: 8 on a CPU; on a GPU it grows with the budget."""
    micro_batch: int | None = None
    """The most rows of one forward pass on each device, fewer where memory is short. Computed: at most 32 on a GPU."""
    packing: Literal["blocks", "documents"] = "blocks"
    """How rows are cut from the text: `blocks` anywhere, using all tokens; `documents` at the start of a document,
    dropping some tokens (how many is printed)."""
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """Precision of matrix products; their weights are always fp32. Computed: bf16 on a GPU that supports it, on a CPU
    where it is measured to be much faster (`trainer.training.precision`). fp8 needs torchao and a GPU with fp8."""
    muon_precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of Muon's matrix polynomials, independent of the model's. Computed: bf16 on a GPU and on a CPU with
    hardware support, see `trainer.optim.muon`."""
    table_precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of embeddings in graphs, of their gradients and momenta (`trainer.optim.table_adamw`). `bf16` saves 6
    of 16 bytes a weight. No effect in fp32."""
    compile: bool | None = None
    """Compile the model with torch.compile. Computed: on a GPU, and on a CPU with a C++ compiler from 10 minutes up."""
    activation_checkpointing: bool = False
    """Store only the input of each block and recompute it in the backward pass: less memory, a third more work."""
    chunk: int | None = None
    """Tokens of a row in one pass, after which the state is carried over, so that memory does not grow with the row
    (see `trainer.training.chunked_bptt`). For models with a state of fixed size: rwkv5. Computed: the whole row."""
    chunk_gradients: Literal["truncated", "through"] = "truncated"
    """Whether gradients stop at a chunk's first token or go through the state into earlier chunks, which costs one or
    two more forward passes."""
    strategy: Literal["auto", "ddp", "fsdp", "zero2"] = "auto"
    """How several devices share the work: `ddp` gives each the whole model, `fsdp` a part of every weight, `zero2` of
    every gradient and momentum. Computed: ddp."""
    spikes: Literal["skip", "stop", "off"] = "skip"
    """What to do with a gradient spike, see `trainer.training.grad_spikes`."""
    evaluations: int | None = None
    """Evaluations on dev after the first, evenly over the budget. Computed: 3 below a minute, else 5."""
    dev_tokens: int | None = None
    """Tokens of dev that one evaluation reads, always the same ones. Computed: 8,192 to 1,048,576."""
    sample_tokens: int = 48
    """Length of each sample; 0 writes none."""

    def __post_init__(self) -> None:
        limits = {"sequence_length": 2, "batch": 1, "micro_batch": 1, "chunk": 2, "evaluations": 1, "dev_tokens": 1}
        for name, minimum in limits.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ConfigError(f"train.{name} must be at least {minimum}, not {value}")
        if self.sample_tokens < 0:
            raise ConfigError(f"train.sample_tokens cannot be {self.sample_tokens}")
        if self.batch and self.micro_batch and self.batch % self.micro_batch:
            raise ConfigError(f"train.micro_batch {self.micro_batch} must divide train.batch {self.batch}")


@dataclass(frozen=True)
class TrainConfig:
    """Train an architecture within a budget."""

    out: Path
    """Folder of the run. If it holds a checkpoint of the same run, training resumes from it, exactly."""
    preset: str | None = None
    """A name from `dailytrain presets`: defaults for the other options."""
    from_: Path | None = None
    """`--from`, or `from = "..."` in a file; `from` is a keyword in Python."""
    lora: LoraArgs = field(default_factory=LoraArgs)
    arch: str = "gpt"
    """Architecture: a name from `dailytrain arch list`."""
    graph: Path | None = None
    """A folder of `dailytrain trace`: train its graphs instead of the Python of `arch`."""
    eager: bool = False
    """Train the Python module of `arch`, for debugging, instead of graphs traced from it."""
    budget: str = "60s"
    """What training may use: 24h, 15s, 3B-tokens, 500steps or 1e19flops. Evaluation and checkpoints are not charged."""
    seed: int = 1
    """Of the weights and of the data's order."""
    model: dict[str, Any] = field(default_factory=dict)
    """Fields of the architecture's Config, one by one: --model.depth 4. The others are computed."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """Fields of the architecture's recipe, one by one: --recipe.schedule.warmdown 0.5, --recipe.matrices.learning_rate
    0.01, --recipe.clip 1. The others are the architecture's."""
    train: TrainArgs = field(default_factory=TrainArgs)
    corpus: str | None = None
    """Text to train on: python-docs (the default), fineweb-edu, slimpajama or files:GLOB."""
    tokenizer: str | None = None
    """bpe:SIZE (trained on the corpus; the default is bpe:8192), gpt2:FOLDER, world:FILE or a tokenizer.json."""
    limit_bytes: int | str | None = None
    """Use only this much text from the start of the corpus: 1000000 or 16MiB. Computed: 16 MiB for CPU runs below ten
    minutes, else all."""
    dataset: Path | None = None
    """A prepared dataset, instead of corpus and tokenizer. It is only read."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train. Computed: on a GPU if there is one."""
    devices: int = 1
    """GPUs to train on, or processes on a CPU. They share a step's rows evenly."""
    threads: int | None = None
    """Most CPU threads of torch. Unless OMP_NUM_THREADS is set, a run uses one for each core that is idle at its start,
    and keeps that number when it is resumed. Computed: the cores that this process may use."""
    checkpoint_every: str = "30s"
    """Seconds or steps between checkpoints: 30s, 5m, 100steps. The interval does not change results."""
    keep: int = 2
    """Checkpoints to keep; older ones are deleted."""
    milestones: int = 0
    """Also keep the weights, in bf16, at every so many percent of the budget, in `milestones/`; 0: none."""
    logger: Literal["none", "tensorboard", "wandb"] = "none"
    """Also send the metrics there (pip install 'dailytrain[loggers]'). metrics.jsonl is written in any case."""

    def __post_init__(self) -> None:
        self.parsed_budget  # noqa: B018  (raises if it is invalid)
        if self.checkpoint_interval.kind not in ("seconds", "steps"):
            raise ConfigError(f"checkpoint_every is in seconds or steps, not {self.checkpoint_every!r}")
        if self.dataset and (self.corpus or self.tokenizer or self.limit_bytes):
            raise ConfigError("dataset replaces corpus, tokenizer and limit_bytes: set either it or them")
        if self.graph and (self.model or self.from_ or self.train.chunk or self.train.strategy in SHARDED):
            raise ConfigError("graph fixes the model: leave out model, --from, train.chunk and sharded strategies")
        if self.graph and self.train.activation_checkpointing:
            raise ConfigError("a graph has no modules for train.activation_checkpointing")
        if self.graph and self.eager:
            raise ConfigError("graph has no Python module to train with --eager: leave out one of them")
        if self.lora.rank and self.from_ is None:
            raise ConfigError("lora.rank needs --from: adapters fine-tune a trained model")
        if self.keep < 1 or self.devices < 1 or (self.threads is not None and self.threads < 1):
            raise ConfigError("keep, devices and threads must be at least 1")
        if not 0 <= self.milestones < 100:
            raise ConfigError(f"milestones is a percentage from 0 to 99, not {self.milestones}")
        if self.devices == 1 and self.train.strategy != "auto":
            raise ConfigError(f"train.strategy {self.train.strategy} needs several devices: set --devices")
        if self.limit_bytes is not None:
            parse_size(str(self.limit_bytes))
        if not 0 <= self.seed < 2**31:
            raise ConfigError(f"seed must be from 0 to 2147483647, not {self.seed}")

    @cached_property
    def parsed_budget(self) -> Budget:
        return Budget.parse(self.budget)

    @cached_property
    def checkpoint_interval(self) -> Budget:
        return Budget.parse(self.checkpoint_every)


def flatten_table(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return a table of tables as dotted names with their values, in order."""
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        found += flatten_table(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(prefix + name, value)]
    return found
