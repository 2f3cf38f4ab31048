"""Compute what the configuration leaves open, from the device and the budget."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from trainer.accounting.budget import Budget
from trainer.config.train_config import SHARDED, SHORT_TEXT, ConfigError, TrainConfig
from trainer.data.sizes import parse_size

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
    micro_batch: int  # at first the upper limit for `trainer.training.micro_batch`
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
