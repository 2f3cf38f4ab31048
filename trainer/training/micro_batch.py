"""Choose the micro-batch (the rows of one forward pass) and compile the model, before the budget's clock starts.

The micro-batch is no part of the model: it is the largest divisor of a device's rows, up to the configured one, that
fits into this machine's memory, whatever an earlier machine of the run chose. On a GPU that is found by trying smaller
and smaller ones. On a CPU, where the kernel would kill the process, it is computed from the free memory and the bytes
that one row saves for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from rich.console import Console
from torch import Tensor

from trainer.distributed.devices import (
    gather_weights,
    get_free_memory_bytes,
)
from trainer.errors import (
    attribute_to_model,
)
from trainer.ops.losses import limit_chunk_positions
from trainer.training.objective import Objective
from trainer.training.run import Run

MEMORY_SHARE = 0.6  # of the free memory; the rest is for what is not counted here and for other processes
LOGIT_COPIES = 4  # a chunk's logits in fp32, their softmax, their gradient, a soft cap


def measure_row_bytes(objective: Objective, row: Tensor) -> int:
    """Return the bytes that a forward pass over `[1, T]` tokens keeps, without weights and tokens."""
    features: list[Tensor] = []

    def compute() -> Tensor:
        features.append(objective.model.features(row))
        return features[0]

    return measure_saved_bytes(compute, (*objective.parameters(), row)) + 2 * features[0].nbytes


def measure_saved_bytes(compute: Callable[[], Tensor], excluded: Iterable[Tensor]) -> int:
    """Return the bytes that a computation saves for its backward pass, without those of the excluded tensors."""
    excluded_storages = {tensor.untyped_storage().data_ptr() for tensor in excluded}
    saved: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in excluded_storages:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        result = compute()
    del result  # not earlier: a freed storage's address could be used again
    return sum(saved.values())


def choose_cpu_micro_batch(objective: Objective, row: Tensor) -> int:
    """Return how many rows fit into the memory at once, at least 1."""
    free = get_free_memory_bytes()
    # Gradients and two momenta are allocated later, each as large as the weights.
    weights = sum(parameter.nbytes for parameter in objective.parameters() if parameter.requires_grad)
    with torch.no_grad():
        vocabulary_size = objective.model(row[:, :1]).size(-1)
    logits = LOGIT_COPIES * 4 * limit_chunk_positions("cpu", vocabulary_size, 0) * vocabulary_size
    available = MEMORY_SHARE * free - 3 * weights - logits
    return max(1, int(available / max(1, measure_row_bytes(objective, row))))


def warm_up(run: Run, console: Console, row: Tensor) -> None:
    """Choose the run's micro-batch and compile the model. Changes nothing else. `row`: tokens `[1, T]`."""
    if run.fraction >= 1:
        return
    if run.resolved.device == "cpu" and run.resolved.micro_batch > 1:
        run.set_micro_batch(min(run.resolved.micro_batch, measure_cpu_micro_batch(run, row)))
    if run.resolved.compile or run.resolved.device == "cuda":
        from trainer.training.compilation import compile_run

        compile_run(run, console, row)


def measure_cpu_micro_batch(run: Run, row: Tensor) -> int:
    """Return how many rows fit into the memory of a CPU, the same in all processes."""
    with attribute_to_model("in a forward pass", 1), torch.compiler.set_stance("force_eager"):
        if run.resolved.is_sharded:
            with torch.no_grad():
                run.model(row, row)  # FSDP initializes itself in the first call of the whole model
        with gather_weights(run.objective):
            rows = choose_cpu_micro_batch(run.objective, row)
    return int(run.fabric.broadcast(rows))
