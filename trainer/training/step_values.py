"""Loss and gradient norm of a step: on a GPU they are read one step late, so that the GPU always has work.

A step is launched as a whole, with its update. Whether the update is made is decided on the device, by the limit of
`GradientSpikeFilter` and by whether loss and norm are finite. So weights never see a divergence that is reported one
step later.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.errors import DivergenceError
from trainer.ops.devices import DeferredRead
from trainer.training.grad_spikes import GradientSpikeFilter


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
        raise DivergenceError(
            f"The {name} became {value} at step {step} ({fraction:.0%} of the budget): training diverged. "
            "A lower learning rate or a longer warmup may help."
        )
