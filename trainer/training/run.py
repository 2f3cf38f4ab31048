"""The state of a run: what the loop works with."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from trainer.accounting.budget import Budget, Usage
from trainer.checkpoint.background_writer import CheckpointWriter
from trainer.checkpoint.host_buffers import HostBuffers
from trainer.config.resolve import ResolvedConfig, find_largest_divisor
from trainer.config.train_config import TrainConfig
from trainer.data.dataset import Dataset
from trainer.data.prefetch import PrefetchLoader
from trainer.graph.files import TracedArchitecture
from trainer.models.base import LanguageModel, Recipe
from trainer.training.grad_spikes import GradientSpikeFilter
from trainer.training.objective import Objective
from trainer.training.step_values import StepValues

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass
class MetricsWindow:
    """Sums over the steps since the last train line."""

    losses: float = 0.0
    steps: int = 0
    seconds: float = 0.0


@dataclass
class Run:
    """Everything the loop works with."""

    config: TrainConfig
    resolved: ResolvedConfig
    fabric: Fabric
    dataset: Dataset
    raw_model: LanguageModel
    objective: Objective  # the model with its loss
    model: nn.Module  # the objective as wrapped by Fabric: what training and evaluation call
    optimizers: list[Optimizer]
    recipe: Recipe
    flops_per_token: float  # that a run is charged, see `trainer.graph.counting`
    window_flops_per_token: float  # of products, attention over its windows: for the MFU that nanochat prints
    initial_flops: float  # charged for the initialization
    spike_filter: GradientSpikeFilter
    loader: PrefetchLoader
    identity: dict[str, Any]  # see `trainer.training.identity`
    traced: TracedArchitecture | None = None  # the graphs that are trained, instead of an architecture's Python
    lineage: dict[str, Any] | None = None  # the base checkpoint, see `trainer.training.finetune`
    peak_flops: float | None = None
    """Peak FLOP/s of one device, see `trainer.accounting.flops`; None if unknown."""
    compile_seconds: float = 0.0  # spent by torch.compile, including earlier processes of this run
    writer: CheckpointWriter = field(default_factory=CheckpointWriter)
    host_buffers: HostBuffers | None = None  # for checkpoints; None: of a CPU
    last_checkpoint: Path | None = None
    usage: Usage = field(default_factory=Usage)
    window: MetricsWindow = field(default_factory=MetricsWindow)
    dev: dict[str, float] = field(default_factory=dict)  # the last evaluation
    unread: StepValues | None = None
    """Loss and gradient norm of the last step, unless they were read. Checkpoints are saved after that."""
    step_microseconds: list[int] = field(default_factory=list)
    """Time charged for each step, if the budget is in seconds. A replay needs it."""

    @property
    def budget(self) -> Budget:
        return self.config.parsed_budget

    def compute_mfu(self, tokens_per_second: float) -> dict[str, float | None]:
        """Return the shares of the devices' peak at a speed, by both counts of FLOPs; None if the peak is unknown.

        `mfu`: all counted operations, attention over all pairs of positions. `mfu_windowed`: as nanochat counts.
        """
        peak = self.peak_flops and self.peak_flops * self.resolved.devices
        counts = {"mfu": self.flops_per_token, "mfu_windowed": self.window_flops_per_token}
        return {name: tokens_per_second * count / peak if peak else None for name, count in counts.items()}

    def set_micro_batch(self, limit: int) -> None:
        """Set the largest micro-batch up to a limit."""
        rows = find_largest_divisor(self.resolved.rows_per_device, limit)
        self.resolved = dataclasses.replace(self.resolved, micro_batch=rows)
        self.identity["train"]["micro_batch"] = rows

    @property
    def fraction(self) -> float:
        """The used part of the budget."""
        tokens = self.resolved.tokens_per_step
        return self.budget.used_fraction(self.usage, tokens, tokens * self.flops_per_token, self.initial_flops)

    @property
    def metrics_path(self) -> Path:
        """The run's `metrics.jsonl`; /dev/null in all processes but the first."""
        return self.config.out / "metrics.jsonl" if self.fabric.is_global_zero else Path(os.devnull)

    def get_progress_metrics(self) -> dict[str, float]:
        """Return the metrics that train and dev lines share."""
        usage = self.usage
        return {"fraction": self.fraction, "tokens": usage.tokens, "flops": usage.flops, "seconds": usage.seconds}
