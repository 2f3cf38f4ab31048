"""The state of a run: what the loop works with."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.accounting.budget import Budget, Usage
from trainer.checkpoint.store import CheckpointWriter, HostBuffers
from trainer.config.train_config import ResolvedConfig, TrainConfig, find_largest_divisor
from trainer.data.dataset import Dataset
from trainer.data.loader import PrefetchLoader
from trainer.errors import DivergenceError
from trainer.graph.files import TracedArchitecture
from trainer.models.base import LanguageModel, Recipe
from trainer.ops.devices import DeferredRead
from trainer.training.objective import Objective

if TYPE_CHECKING:
    from lightning_fabric import Fabric


# --- gradient spikes --------------------------------------------------------------------------------------------------
# Gradient spikes: skip an update whose gradient norm is far above the median, and stop if spikes do not end.
# Norms are those after clipping, if the recipe clips.
#
# The state is part of the checkpoint, so a resumed run takes the same decisions.


SPIKE_FACTOR = 20.0  # a norm this many times the median of the last `WINDOW` is a spike; a cautious guess
WINDOW = 100
DIVERGED = """training diverged. A lower learning rate (recipe.matrices.learning_rate), a longer warmup \
(recipe.schedule.warmup) or a clipped gradient (recipe.clip) may help."""
MIN_NORMS = 20  # before a norm can be a spike
MAX_IN_A_ROW = 10  # this many consecutive spikes end the run


@dataclass
class GradientSpikeFilter:
    """`skip` skips the update of a spike, `stop` ends the run at the first spike, `off` does nothing."""

    mode: Literal["skip", "stop", "off"]
    norms: list[float] = field(default_factory=list)
    skipped: int = 0
    in_a_row: int = 0

    @property
    def limit(self) -> float:
        """The largest norm of the next gradient that is no spike."""
        if self.mode == "off" or len(self.norms) < MIN_NORMS:
            return math.inf
        return SPIKE_FACTOR * statistics.median(self.norms)

    def accept(self, norm: float, step: int) -> bool:
        """Return whether to make the update of a gradient with this norm. Raise `DivergenceError` to end the run."""
        if norm <= self.limit:
            self.norms = [*self.norms[1 - WINDOW :], norm]
            self.in_a_row = 0
            return True
        self.skipped += 1
        self.in_a_row += 1
        if self.mode == "stop" or self.in_a_row >= MAX_IN_A_ROW:
            times = "" if self.mode == "stop" else f", {self.in_a_row} times in a row"
            raise DivergenceError(
                f"The gradient's norm at step {step} is {norm:.3g}, the median {self.limit / SPIKE_FACTOR:.3g}{times}: "
                f"{DIVERGED}"
            )
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"norms": self.norms, "skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.norms, self.skipped, self.in_a_row = list(state["norms"]), state["skipped"], state["in_a_row"]


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
    model: LanguageModel
    objective: Objective  # the model with its loss
    wrapped: nn.Module  # the objective, wrapped by Fabric: what training and evaluation call
    optimizers: list[Optimizer]
    recipe: Recipe
    flops_per_token: float  # that a run is charged, see `trainer.graph.counting`
    window_flops_per_token: float  # of products, attention over its windows: for the MFU that nanochat prints
    initial_flops: float  # charged for the initialization
    spike_filter: GradientSpikeFilter
    loader: PrefetchLoader
    identity: dict[str, Any]  # see `trainer.training.checkpointing`
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

        A share above 1 shows that it is: that of a CPU is measured, perhaps while other programs ran.
        `mfu`: all counted operations, attention over all pairs of positions. `mfu_windowed`: as nanochat counts.
        """
        peak = self.peak_flops and self.peak_flops * self.resolved.devices
        counts = {"mfu": self.flops_per_token, "mfu_windowed": self.window_flops_per_token}
        shares = {name: tokens_per_second * count / peak if peak else None for name, count in counts.items()}
        return dict.fromkeys(shares) if any(share and share > 1 for share in shares.values()) else shares

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


# --- values of a step -------------------------------------------------------------------------------------------------
# Loss and gradient norm of a step: on a GPU they are read one step late, so that the GPU always has work.
# A step is launched as a whole, with its update. Whether the update is made is decided on the device, by the limit of
# `GradientSpikeFilter` and by whether loss and norm are finite. So weights never see a divergence that is reported one
# step later.


class StepValues:
    """The values of a launched step. `step` and `fraction` are for messages.

    The filter judges the norm after clipping: a clipped update is no longer than the clip, whatever its gradient was.
    """

    def __init__(
        self,
        loss: Tensor,
        norm: Tensor,
        spike_filter: GradientSpikeFilter,
        clip: float | None,
        step: int,
        fraction: float,
    ) -> None:
        self.spike_filter, self.step, self.fraction = spike_filter, step, fraction
        self.longest = math.inf if clip is None else clip
        self.deferred = DeferredRead(torch.stack([loss, norm.to(loss)]))
        self.known: tuple[float, float] | None = None
        finite = loss.isfinite() & norm.isfinite()
        self.is_accepted = finite & (norm.double().clamp(max=self.longest) <= spike_filter.limit)
        """Whether the update is made, on the step's device: what `spike_filter.accept` will return."""

    def read(self) -> tuple[float, float]:
        """Return loss and norm, and tell the filter the first time. Before the next step's values are made.

        Raise `DivergenceError` if training diverged.
        """
        if self.known is None:
            loss, norm = self.deferred.read()
            check_finite(loss, norm, self.step, self.fraction)
            self.spike_filter.accept(min(norm, self.longest), self.step)
            self.known = loss, norm
        return self.known


def check_finite(loss: float, norm: float, step: int, fraction: float) -> None:
    """Raise `DivergenceError` if the loss or the gradient's norm is not finite."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        name, value = ("gradient", norm) if math.isfinite(loss) else ("loss", loss)
        raise DivergenceError(f"The {name} became {value} at step {step} ({fraction:.0%} of the budget): {DIVERGED}")


# --- signals ----------------------------------------------------------------------------------------------------------


class StopRequest:
    """Handles SIGTERM and SIGINT: stop at once, or if `is_graceful` after the current step (a second one at once)."""

    def __init__(self) -> None:
        self.is_graceful = False
        self.is_requested = False

    def __enter__(self) -> Self:
        self.before = {number: signal.signal(number, self.handle_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested or not self.is_graceful:
            raise KeyboardInterrupt
        self.is_requested = True
