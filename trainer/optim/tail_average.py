"""The mean of the weights over the last steps of a run.

Tail averaging (Jain et al., arXiv 1610.03774, section 2): the final weights are the mean of those after each step in
the last part of the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class TailAverage(Optimizer):
    """Averages parameters after each step, and changes none until `copy_to_parameters`.

    An optimizer so that checkpoints hold and shard its state as that of others. Step it after the others.
    """

    def __init__(self, parameters: Iterable[Sequence[nn.Parameter]]) -> None:
        groups = [
            {"params": list(group), "name": "tail average", "steps": 0, "is_active": False} for group in parameters
        ]
        super().__init__(groups, {"lr": 0.0, "top_rate": 0.0})

    def set_active(self, is_active: bool) -> None:
        """Set whether the next step counts."""
        for group in self.param_groups:
            group["is_active"] = is_active

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            if not group["is_active"]:
                continue
            group["steps"] += 1
            for parameter in group["params"]:
                if group["steps"] == 1:
                    # In fp32, whatever the parameter's type: later steps count little.
                    self.state[parameter]["mean"] = parameter.detach().to(torch.float32, copy=True)
                else:
                    mean: Tensor = self.state[parameter]["mean"]
                    mean.lerp_(parameter.float(), 1 / group["steps"])
        return loss

    @torch.no_grad()
    def copy_to_parameters(self) -> None:
        """Replace the parameters by their means, if there was a step."""
        for group in self.param_groups:
            for parameter in group["params"] if group["steps"] else ():
                parameter.copy_(self.state[parameter]["mean"])
