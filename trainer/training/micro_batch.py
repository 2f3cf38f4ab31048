"""How many rows pass through a model at once: as many as the memory takes, found before the clock starts.

On a GPU by trying, with half as many after each failure. On a CPU, where a try too many gets the process killed, by
what one row leaves behind for the backward pass, against the memory that is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from trainer.config.resolve import find_largest_divisor
from trainer.distributed.devices import free_bytes
from trainer.training.objective import Objective, most

MEMORY_SHARE = 0.6
"""Of the free memory: the rest is for what is not counted here, and for others."""
LOGITS = 4
"""A chunk's logits, in fp32, and about as much three times over: their softmax, their gradient, a soft cap."""


def measure_row_bytes(objective: Objective, row: Tensor) -> int:
    """Return the bytes that a forward pass over `[1, T]` tokens keeps, beside weights and tokens. Leaves no trace."""
    found: list[Tensor] = []

    def compute() -> Tensor:
        found.append(objective.model.features(row))
        return found[0]

    return measure_saved_bytes(compute, (*objective.parameters(), row)) + 2 * found[0].nbytes


def measure_saved_bytes(compute: Callable[[], Tensor], known: Iterable[Tensor]) -> int:
    """Return the bytes that a computation keeps for its way back, beside tensors that are there anyway."""
    mine = {tensor.untyped_storage().data_ptr() for tensor in known}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in mine:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = compute()
    del result  # only now: what was kept must not make room for what is still to come
    return sum(kept.values())


def choose_cpu_micro_batch(objective: Objective, row: Tensor, rows: int) -> int:
    """Return how many of `rows` to pass at once: a divisor of them."""
    free = free_bytes()
    if free is None:
        return rows
    # Gradients and momenta are still to come, each as large as the weights.
    weights = sum(parameter.nbytes for parameter in objective.parameters() if parameter.requires_grad)
    with torch.no_grad():
        vocabulary_size = objective.model(row[:, :1]).size(-1)
    room = MEMORY_SHARE * free - 3 * weights - LOGITS * 4 * most("cpu", vocabulary_size) * vocabulary_size
    return find_largest_divisor(rows, max(1, int(room / max(1, measure_row_bytes(objective, row)))))
