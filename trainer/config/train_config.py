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
Missing values are computed from the device and the budget in `trainer.config.train_config`, printed and saved.

`corpus` is one of `trainer.data.corpora`: `python-docs`, `files:PATH`, `rephrased:OWNER/NAME@SHA256` for the
published dataset of a rephrasing campaign, and others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from trainer.accounting.budget import Budget, parse_size
from trainer.errors import UserError
from trainer.optim import LoraArgs

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
    """What to do with a gradient spike, see `trainer.training.run`."""
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


# --- what the configuration leaves open -------------------------------------------------------------------------------


MACHINE_FIELDS = ("precision", "muon_precision", "compile")
"""Fields whose defaults depend on the machine. Chosen once for a run and saved with it."""
RESUMABLE_FIELDS = ("device", "devices", "strategy", "micro_batch", "activation_checkpointing")
"""Fields that may change when a run is resumed. They change the order of sums: last digits differ."""


@dataclass(frozen=True)
class ResolvedConfig:
    """Every setting of a run, configured or computed. Runs with the same settings, model and data are the same run."""

    device: Literal["cpu", "cuda"]
    devices: int
    depth: int  # default of the model's sizes
    sequence_length: int
    batch: int
    micro_batch: int  # at first the upper limit for `trainer.training.loop`
    packing: Literal["blocks", "documents"]
    precision: Literal["fp32", "bf16", "fp8"]
    muon_precision: Literal["fp32", "bf16"]
    compile: bool
    activation_checkpointing: bool
    strategy: Literal["single", "ddp", "fsdp", "zero2"]
    spikes: Literal["skip", "stop", "off"]
    evaluations: int
    dev_tokens: int
    sample_tokens: int
    table_precision: Literal["fp32", "bf16"] = "fp32"
    chunk: int = 0  # tokens; 0 for whole rows
    chunk_gradients: Literal["truncated", "through"] = "truncated"

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds only a part of the model."""
        return self.strategy in SHARDED

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a row in one forward pass."""
        return min(self.chunk, self.sequence_length) or self.sequence_length

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.sequence_length

    @property
    def rows_per_device(self) -> int:
        """Rows of a step on each device."""
        return self.batch // self.devices


def resolve_config(
    config: TrainConfig, device: Literal["cpu", "cuda"], machine_fields: Mapping[str, Any] = MappingProxyType({})
) -> ResolvedConfig:
    """Compute what the configuration leaves open; `machine_fields` are values for `MACHINE_FIELDS`."""
    args, budget, on_cpu = config.train, config.parsed_budget, device == "cpu"
    batch = args.batch or (8 if on_cpu else choose_gpu_batch(budget, args.sequence_length or 2048))
    if batch % config.devices:
        raise ConfigError(f"{config.devices} devices cannot share {batch} rows evenly: change train.batch")
    computed = {
        "precision": "fp32" if on_cpu else "bf16",
        "muon_precision": "fp32" if on_cpu else "bf16",
        "compile": not on_cpu or not is_short(budget),
        **machine_fields,
    }
    precision = computed["precision"] if args.precision == "auto" else args.precision
    resolved = ResolvedConfig(
        device=device,
        devices=config.devices,
        depth=get_configured_depth(config) or choose_depth(budget, on_cpu),
        sequence_length=args.sequence_length or (256 if on_cpu else 2048),
        batch=batch,
        micro_batch=args.micro_batch or find_largest_divisor(batch // config.devices, batch if on_cpu else 32),
        packing=args.packing,
        precision=precision,
        muon_precision=computed["muon_precision"] if args.muon_precision == "auto" else args.muon_precision,
        compile=computed["compile"] if args.compile is None else args.compile,
        activation_checkpointing=args.activation_checkpointing,
        strategy="single" if config.devices == 1 else "ddp" if args.strategy == "auto" else args.strategy,
        spikes=args.spikes,
        evaluations=args.evaluations or (3 if is_under_a_minute(budget) else 5),
        dev_tokens=args.dev_tokens or choose_dev_tokens(budget, on_cpu),
        sample_tokens=args.sample_tokens,
        table_precision="fp32" if precision == "fp32" else args.table_precision,
        chunk=args.chunk or 0,
        chunk_gradients=args.chunk_gradients,
    )
    if resolved.rows_per_device % resolved.micro_batch:
        shared = f"{resolved.rows_per_device}, a device's share of " if resolved.devices > 1 else ""
        raise ConfigError(f"train.micro_batch {resolved.micro_batch} must divide {shared}train.batch {resolved.batch}")
    if budget.kind == "tokens" and budget.amount < resolved.tokens_per_step:
        raise ConfigError(
            f"impossible budget {config.budget!r}: one step is {resolved.tokens_per_step} tokens already "
            f"({resolved.batch} rows of {resolved.sequence_length})"
        )
    return resolved


def get_configured_depth(config: TrainConfig) -> int | None:
    """Return `model.depth` if it is set."""
    depth = config.model.get("depth")
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= 256):
        raise ConfigError(f"model.depth must be a whole number from 1 to 256, not {depth!r}")
    return depth


def is_short(budget: Budget) -> bool:
    """Return whether the budget is below ten minutes, which is not worth compiling for on a CPU.

    In other units: below 5,000 steps, 10 million tokens or 1e14 FLOPs, which take about as long there.
    """
    return budget.amount < {"seconds": 600, "steps": 5000, "tokens": 1e7, "flops": 1e14}[budget.kind]


def is_under_a_minute(budget: Budget) -> bool:
    return budget.kind == "seconds" and budget.amount < 60


def choose_dev_tokens(budget: Budget, on_cpu: bool) -> int:
    """Return the tokens of an evaluation: few enough that all evaluations take a small part of the run."""
    if not on_cpu:
        return 2**18 if is_short(budget) else 2**20
    return 2**13 if is_under_a_minute(budget) else 2**14 if is_short(budget) else 2**17


def choose_depth(budget: Budget, on_cpu: bool) -> int:
    """Return the depth for a budget. Two cores train depth 2 on about 10,000 tokens/s, depth 4 on a third of that.

    The limits on a CPU are estimated from tokens per parameter, not measured.
    """
    if not on_cpu:
        from trainer.accounting.training_size import choose_gpu_depth

        return choose_gpu_depth(budget)
    if budget.kind != "seconds":
        return 4
    limits = ((120, 2), (600, 3), (7200, 4), (math.inf, 6))
    return next(depth for seconds, depth in limits if budget.amount < seconds)


def choose_gpu_batch(budget: Budget, sequence_length: int) -> int:
    """Return the rows of a step: the power of two nearest to `batch_tokens`, and at least 2^15 tokens."""
    from trainer.accounting.training_size import estimate_gpu_flops
    from trainer.models.base import batch_tokens

    total_tokens = (estimate_gpu_flops(budget) * 2) ** 0.5
    tokens = max(2**15, batch_tokens(total_tokens))
    return 2 ** max(0, round(math.log2(tokens / sequence_length)))


def find_largest_divisor(number: int, limit: int) -> int:
    return next(d for d in range(min(number, limit), 0, -1) if number % d == 0)


def serialize_config(config: TrainConfig, resolved: ResolvedConfig) -> dict[str, Any]:
    """Return the entry `config` of `run.json`: the configuration, and every resolved setting."""
    configured = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in dataclasses.asdict(config).items()
        if name not in ("out", "dataset", "from_")
    }
    return {"given": configured, "resolved": dataclasses.asdict(resolved)}


def choose_text_limit(config: TrainConfig, device: str) -> int | None:
    """Return the bytes of the corpus to prepare, so that a short run on a CPU starts soon; None for all of it."""
    if config.limit_bytes is not None:
        return parse_size(str(config.limit_bytes))
    return SHORT_TEXT if device == "cpu" and is_short(config.parsed_budget) else None
