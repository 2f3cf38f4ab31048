"""A run's configuration: one dataclass, from a TOML or JSON file, from flags, or from both (flags win).

    arch = "gpt"
    budget = "180s"
    seed = 1

    [model]             # fields of the architecture's own Config; `depth` is the dial that computes the others
    depth = 4

    [recipe.matrices]   # fields of the architecture's recipe, see `trainer.config.recipe_overrides`
    learning_rate = 0.01

    [train]             # what changes the numbers, beside the architecture and its recipe: `Numbers` below
    batch = 8

The same as flags: `--arch gpt --budget 180s --model.depth 4 --train.batch 8`. Everything else at the top level says
where and how to run and changes no number: corpus and folders (the dataset's hash counts, not its place),
`checkpoint_every`, `keep`, `logger`, `threads`. What is not given is computed from the device and the budget in
`resolve`, printed and saved.

`corpus` is one of `trainer.data.corpora`: `python-library`, `files:PATH`, `rephrased:OWNER/NAME@SHA256` for what a
campaign of the dataset swarm has published, and others.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from trainer.accounting.budget import Budget
from trainer.cli.prepare import parse_size
from trainer.models.scaling import batch_tokens

DEFAULT_CORPUS = "python-library"
DEFAULT_TOKENIZER = "bpe:8192"
SHORT_TEXT = 16 * 2**20
"""Bytes of text that a CPU run of less than ten minutes prepares, unless told otherwise."""


SHARDED = ("fsdp", "zero2")
"""Strategies that cut the weights."""


class ConfigError(ValueError):
    """The configuration contradicts itself or names what is not there; the message is one line."""


@dataclass(frozen=True)
class TrainArgs:
    """What changes the numbers, beside the architecture and its recipe."""

    sequence_length: int | None = None
    """Tokens in a row. Computed: 256 on a CPU, 2048 on a GPU."""
    batch: int | None = None
    """Rows in one optimizer step. Computed: 8 on a CPU; on a GPU it grows with the budget."""
    micro_batch: int | None = None
    """Rows that pass through the model of each device at once; gradients of a step's parts add up. Computed: as many as
    fit into the memory, at most 32 on a GPU."""
    packing: Literal["blocks", "documents"] = "blocks"
    """How rows are cut from the text: `blocks` anywhere, nothing left out; `documents` so that each begins with the
    start of a document, at the price of some tokens (how many is printed)."""
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """What matrix products are computed in; weights are always fp32. Computed: bf16 on a GPU that supports it, on a CPU
    where it is measured to be much faster (`trainer.training.precision`). fp8 needs torchao and a GPU that has it."""
    muon_precision: Literal["auto", "fp32", "bf16"] = "auto"
    """What Muon's matrix polynomials are computed in, whatever the model is. Computed: bf16 on a GPU and on a CPU that
    multiplies it in hardware, see `trainer.optim.muon`."""
    compile: bool | None = None
    """Whether torch.compile translates the model first. Computed: on a GPU yes, on a CPU from ten minutes up where
    there is a C++ compiler."""
    activation_checkpointing: bool = False
    """Keep no block's activations but its input and compute the rest again going backward: less memory, a third more
    work."""
    chunk: int | None = None
    """Tokens of a row that pass at once; the state is carried on to the next ones, see
    `trainer.training.chunked_bptt`. Memory then
    does not grow with the row. For models whose state does not grow either: rwkv5. Computed: the whole row."""
    chunk_gradients: Literal["truncated", "through"] = "truncated"
    """Whether gradients end at a chunk's first token or go on through the state into the chunks before it, which takes
    one or two more forward passes."""
    strategy: Literal["auto", "ddp", "fsdp", "zero2"] = "auto"
    """How several devices share the work: `ddp` gives each the whole model, `fsdp` a part of every weight, `zero2` of
    every gradient and momentum. Computed: ddp."""
    spikes: Literal["skip", "stop", "off"] = "skip"
    """What to do with a gradient far beyond the usual, see `trainer.training.grad_spikes`."""
    evaluations: int | None = None
    """Evaluations on dev after the first, evenly over the budget. Computed: 3 below a minute, else 5."""
    dev_tokens: int | None = None
    """Tokens of dev that one evaluation reads, always the same ones. Computed: 8,192 to 1,048,576."""
    sample_tokens: int = 48
    """Length of each sample; 0 writes none."""

    def __post_init__(self) -> None:
        for name, least in {
            "sequence_length": 2,
            "batch": 1,
            "micro_batch": 1,
            "chunk": 2,
            "evaluations": 1,
            "dev_tokens": 1,
        }.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"train.{name} must be at least {least}, not {value}")
        if self.sample_tokens < 0:
            raise ConfigError(f"train.sample_tokens cannot be {self.sample_tokens}")
        if self.chunk and self.strategy in SHARDED:
            raise ConfigError(f"train.chunk goes with one device or with ddp, not with train.strategy {self.strategy}")
        if self.batch and self.micro_batch and self.batch % self.micro_batch:
            raise ConfigError(f"train.micro_batch {self.micro_batch} must divide train.batch {self.batch}")


@dataclass(frozen=True)
class LoraArgs:
    """Adapters in place of all weights, see `trainer.optim.lora`."""

    rank: int = 0
    """Rows of each adapter's smaller matrix; 0 trains all weights. 8 is usual."""
    alpha: float = 16.0
    """An adapter's product counts alpha / rank times."""
    targets: str = ""
    """Which matrices: shell patterns over their names, commas between them. Computed: all but embedding and head."""
    vectors: bool = False
    """Whether vectors are trained, too: norms, gains, biases."""

    def __post_init__(self) -> None:
        if self.rank < 0 or not 0 < self.alpha < math.inf:
            raise ConfigError(f"lora.rank cannot be {self.rank}, nor lora.alpha {self.alpha}")
        if not self.rank and (self.targets or self.vectors):
            raise ConfigError("lora.targets and lora.vectors need a lora.rank")


@dataclass(frozen=True)
class TrainConfig:
    """Train an architecture within a budget."""

    out: Path
    """Folder of the run. If it holds a checkpoint of the same run, training goes on from there, exactly."""
    preset: str | None = None
    """A line of `dailytrain presets`: values for everything that is not given here."""
    from_: Path | None = None
    """`--from`, `from = "..."`: the name that Python allows."""
    lora: LoraArgs = field(default_factory=LoraArgs)
    arch: str = "gpt"
    """Architecture: a line of `dailytrain arch list`."""
    budget: str = "60s"
    """What training may use: 24h, 15s, 3B-tokens, 500steps or 1e19flops. Evaluation and checkpoints are not charged."""
    seed: int = 1
    """Of the weights and of the data's order."""
    model: dict[str, Any] = field(default_factory=dict)
    """Fields of the architecture's Config, one by one: --model.depth 4. What is not given is computed."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """Fields of the architecture's recipe, one by one: --recipe.schedule.warmdown 0.5, --recipe.matrices.learning_rate
    0.01, --recipe.clip 1. What is not given is as the architecture declares it."""
    train: TrainArgs = field(default_factory=TrainArgs)
    corpus: str | None = None
    """Text to train on: python-library (the default), fineweb-edu, slimpajama or files:GLOB."""
    tokenizer: str | None = None
    """bpe:SIZE (trained on the corpus; the default is bpe:8192), gpt2:FOLDER, world:FILE or a tokenizer.json."""
    limit_bytes: int | str | None = None
    """Take only this much text from the start of the corpus: 1000000 or 16MiB. Computed: 16 MiB for CPU runs below ten
    minutes, else all."""
    dataset: Path | None = None
    """A prepared dataset, instead of corpus and tokenizer. It is only read."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train. Computed: on a GPU if there is one."""
    devices: int = 1
    """GPUs to train on, or processes on a CPU. They share a step's rows evenly."""
    threads: int | None = None
    """CPU threads of torch. Computed: one for each core this process may use."""
    checkpoint_every: str = "30s"
    """Seconds or steps between checkpoints: 30s, 5m, 100steps. Another interval changes no number."""
    keep: int = 2
    """Checkpoints to keep; older ones are deleted."""
    logger: Literal["none", "tensorboard", "wandb"] = "none"
    """Also send the metrics there (pip install 'dailytrain[loggers]'). metrics.jsonl is written in any case."""

    def __post_init__(self) -> None:
        self.parsed_budget  # noqa: B018  raises where it is impossible
        if self.checkpoint_interval.kind not in ("seconds", "steps"):
            raise ConfigError(f"checkpoint_every is in seconds or steps, not {self.checkpoint_every!r}")
        if self.dataset and (self.corpus or self.tokenizer or self.limit_bytes):
            raise ConfigError(
                "dataset is a prepared corpus with its tokenizer: give it, or corpus, tokenizer, limit_bytes"
            )
        if self.lora.rank and self.from_ is None:
            raise ConfigError("lora.rank needs --from: adapters change a model that has learned something")
        if self.keep < 1 or self.devices < 1 or (self.threads is not None and self.threads < 1):
            raise ConfigError("keep, devices and threads must be at least 1")
        if self.devices == 1 and self.train.strategy != "auto":
            raise ConfigError(f"train.strategy {self.train.strategy} is for several devices: give --devices")
        self.text_limit("cpu")
        if not 0 <= self.seed < 2**31:
            raise ConfigError(f"seed must be from 0 to 2147483647, not {self.seed}")

    @cached_property
    def parsed_budget(self) -> Budget:
        return Budget.parse(self.budget)

    @cached_property
    def checkpoint_interval(self) -> Budget:
        return Budget.parse(self.checkpoint_every)

    def text_limit(self, device: str) -> int | None:
        """Bytes of the corpus to prepare, so that preparing stays short beside the training; None is all."""
        if self.limit_bytes is not None:
            return parse_size(str(self.limit_bytes))
        return SHORT_TEXT if device == "cpu" and is_short(self.parsed_budget) else None


MACHINE_FIELDS = ("precision", "muon_precision", "compile", "micro_batch")
"""Fields that the machine has a say in where they are not given: settled once for a run, and kept with it."""
RESUMABLE_FIELDS = ("devices", "strategy", "micro_batch", "activation_checkpointing")
"""How the work is arranged: what a run may go on with otherwise. Sums then add up in another order, so that numbers
differ in their last digits."""


@dataclass(frozen=True)
class ResolvedConfig:
    """Every number that a run needs, given or computed. Two runs with equal ones, model and data are the same run."""

    device: Literal["cpu", "cuda"]
    devices: int
    depth: int
    """What the architecture was sized by, where the model's own fields do not say otherwise."""
    sequence_length: int
    batch: int
    micro_batch: int
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
    chunk: int = 0
    """0: rows pass whole."""
    chunk_gradients: Literal["truncated", "through"] = "truncated"

    @property
    def sharded(self) -> bool:
        """Does no process have the whole model?"""
        return self.strategy in SHARDED

    @property
    def piece(self) -> int:
        """Tokens of a row that pass at once."""
        return min(self.chunk, self.sequence_length) or self.sequence_length

    @property
    def tokens_per_step(self) -> int:
        return self.batch * self.sequence_length

    @property
    def rows(self) -> int:
        """Of a step, on each device."""
        return self.batch // self.devices


def resolve_config(
    config: TrainConfig, device: Literal["cpu", "cuda"], settled: Mapping[str, Any] = MappingProxyType({})
) -> ResolvedConfig:
    """Compute what the configuration leaves open, from the device and the budget.

    `settled`: what the machine had a say in, for `MACHINE`'s fields that are not given.
    """
    given, budget, on_cpu = config.train, config.parsed_budget, device == "cpu"
    batch = given.batch or (8 if on_cpu else choose_gpu_batch(budget, given.sequence_length or 2048))
    if batch % config.devices:
        raise ConfigError(
            f"{config.devices} devices cannot share a step's {batch} rows evenly: give another train.batch"
        )
    computed = {
        "micro_batch": find_largest_divisor(batch // config.devices, batch if on_cpu else 32),
        "precision": "fp32" if on_cpu else "bf16",
        "muon_precision": "fp32" if on_cpu else "bf16",
        "compile": not on_cpu or not is_short(budget),
        **settled,
    }
    resolved = ResolvedConfig(
        device=device,
        devices=config.devices,
        depth=get_given_depth(config) or (choose_cpu_depth(budget) if on_cpu else choose_gpu_depth(budget)),
        sequence_length=given.sequence_length or (256 if on_cpu else 2048),
        batch=batch,
        micro_batch=given.micro_batch or computed["micro_batch"],
        packing=given.packing,
        precision=computed["precision"] if given.precision == "auto" else given.precision,
        muon_precision=computed["muon_precision"] if given.muon_precision == "auto" else given.muon_precision,
        compile=computed["compile"] if given.compile is None else given.compile,
        activation_checkpointing=given.activation_checkpointing,
        strategy="single" if config.devices == 1 else "ddp" if given.strategy == "auto" else given.strategy,
        spikes=given.spikes,
        evaluations=given.evaluations or (3 if is_under_a_minute(budget) else 5),
        dev_tokens=given.dev_tokens or choose_dev_tokens(budget, on_cpu),
        sample_tokens=given.sample_tokens,
        chunk=given.chunk or 0,
        chunk_gradients=given.chunk_gradients,
    )
    if resolved.rows % resolved.micro_batch:
        shared = f"{resolved.rows}, a device's share of " if resolved.devices > 1 else ""
        raise ConfigError(f"train.micro_batch {resolved.micro_batch} must divide {shared}train.batch {resolved.batch}")
    if budget.kind == "tokens" and budget.amount < resolved.tokens_per_step:
        raise ConfigError(
            f"impossible budget {config.budget!r}: one step is {resolved.tokens_per_step} tokens already "
            f"({resolved.batch} rows of {resolved.sequence_length})"
        )
    return resolved


def get_given_depth(config: TrainConfig) -> int | None:
    """Return the dial as given with the model's fields."""
    depth = config.model.get("depth")
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= 256):
        raise ConfigError(f"model.depth must be a whole number from 1 to 256, not {depth!r}")
    return depth


def is_short(budget: Budget) -> bool:
    """Below ten minutes: not worth compiling for on a CPU.

    A budget in other units counts as short below 5,000 steps, 10 million tokens or 1e14 FLOPs: about as long there.
    """
    return budget.amount < {"seconds": 600, "steps": 5000, "tokens": 1e7, "flops": 1e14}[budget.kind]


def is_under_a_minute(budget: Budget) -> bool:
    return budget.kind == "seconds" and budget.amount < 60


def choose_dev_tokens(budget: Budget, on_cpu: bool) -> int:
    """So many that all evaluations together stay short beside the training."""
    if not on_cpu:
        return 2**18 if is_short(budget) else 2**20
    return 2**13 if is_under_a_minute(budget) else 2**14 if is_short(budget) else 2**17


def choose_cpu_depth(budget: Budget) -> int:
    """On two cores depth 2 does about 10,000 tokens/s and depth 4 a third of that: small models first.

    Where to change is an estimate from their tokens for each parameter, not measured.
    """
    if budget.kind == "seconds":
        return next(
            depth for seconds, depth in ((120, 2), (600, 3), (7200, 4), (math.inf, 6)) if budget.amount < seconds
        )
    return 4


def estimate_gpu_flops(budget: Budget) -> float:
    """FLOPs that a budget buys on one H100 at 40 % of its peak: the yardstick of the sizes below."""
    if budget.kind == "flops":
        return budget.amount
    if budget.kind == "seconds":
        return budget.amount * 989e12 * 0.4
    tokens = budget.amount if budget.kind == "tokens" else budget.amount * 2**17
    # A model trained on 12 tokens a parameter: 6 x (tokens / 12) x tokens.
    return tokens**2 / 2


def choose_gpu_depth(budget: Budget) -> int:
    """Even depth whose 12 x depth x (64 x depth)^2 parameters would get about 12 tokens each (nanochat's speedruns)."""
    depth = (estimate_gpu_flops(budget) / (6 * 12 * (12 * 64**2) ** 2)) ** (1 / 6)
    return max(4, round(depth / 2) * 2)


def choose_gpu_batch(budget: Budget, sequence_length: int) -> int:
    """Rows a step, a power of two, for `batch_tokens` of what the budget trains on, at least 2^15 tokens."""
    trained = (estimate_gpu_flops(budget) * 2) ** 0.5
    tokens = max(2**15, batch_tokens(trained))
    return 2 ** max(0, round_log2(tokens / sequence_length))


def round_log2(number: float) -> int:
    """Exponent of the nearest power of two."""
    return round(math.log2(number))


def find_largest_divisor(number: int, most: int) -> int:
    return next(d for d in range(min(number, most), 0, -1) if number % d == 0)


def count_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def serialize_config(config: TrainConfig, resolved: ResolvedConfig) -> dict[str, Any]:
    """Return what `run.json` keeps: the configuration as given, and every number computed."""
    given = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in dataclasses.asdict(config).items()
        if name not in ("out", "dataset", "from_")
    }
    return {"given": given, "resolved": dataclasses.asdict(resolved)}
