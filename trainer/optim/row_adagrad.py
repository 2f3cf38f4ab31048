"""Row-wise Adagrad for tables of which a step reads a few rows: one number for each row and slice.

Adagrad (Duchi et al. 2011) with the mean square over a row in place of each weight's own, as DLRM trains its tables
(Mudigere et al., arXiv 2104.05158, section 4.1.4). A step computes and changes the rows that it has read and nothing
else: its cost does not depend on the size of the table, nor does weight decay reach other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainer.ops.devices import get_row_gradients


class RowAdagrad(Optimizer):
    """For tables `[rows, slices, width]` of `trainer.ops.ngram_memory`. Groups have `lr`, `eps` and `weight_decay`.

    As torch's fused optimizers, it makes no step where `found_inf`, a number on the parameters' device, is 1.
    """

    found_inf: Tensor | None = None
    _step_supports_amp_scaling = True  # torch's name for that

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, {})
        for group in self.param_groups:
            for table in group["params"]:
                self.state[table] = {"square": torch.zeros(table.shape[:2], device=table.device)}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for table in group["params"]:
                gradients = get_row_gradients(table)
                assert gradients is not None, "the recipe's groups are checked"
                for rows, sums, is_read in gradients.iterate_sums():
                    is_made = is_read if self.found_inf is None else is_read & (self.found_inf == 0)
                    step_rows(table, self.state[table]["square"], rows, sums, is_made, group)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for group in self.param_groups:
            for table in group["params"]:
                if (gradients := get_row_gradients(table)) is not None:
                    gradients.clear()


def step_rows(
    table: Tensor, square: Tensor, rows: Tensor, sums: Tensor, is_made: Tensor, group: dict[str, Any]
) -> None:
    """Step different rows of a table `[rows, slices, width]` by their gradients `[N, slices x width]`, where `is_made`.

    `square [rows, slices]`: the sum of the mean squares of earlier gradients. It is added to, so that rows that are
    given to fill up, without a step, do not matter.
    """
    gradient = sums.unflatten(1, table.shape[1:])
    added = torch.where(is_made[:, None], gradient.square().mean(-1), 0.0)
    square.index_add_(0, rows, added)
    size = square[rows].sqrt() + group["eps"]
    change = gradient / size[..., None]
    if group["weight_decay"]:
        change = change + group["weight_decay"] * table[rows]
    change = torch.where(is_made[:, None, None], -group["lr"] * change, 0.0)
    table.index_add_(0, rows, change.to(table.dtype))
