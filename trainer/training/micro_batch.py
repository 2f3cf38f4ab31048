"""Choose the micro-batch (the rows of one forward pass) and compile the model, before the budget's clock starts.

The micro-batch is no part of the model: it is the largest divisor of a device's rows, up to the configured one, that
fits into this machine's memory, whatever an earlier machine of the run chose. On a GPU that is found by trying smaller
and smaller ones. On a CPU, where the kernel would kill the process, it is computed from the free memory and the bytes
that one row saves for the backward pass.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable

import torch
from rich.console import Console
from torch import Tensor, nn

from trainer.accounting.training_size import FP32, ROW_GRADIENTS
from trainer.config.resolve import find_largest_divisor
from trainer.distributed.devices import get_free_memory_bytes
from trainer.distributed.sharding import count_local_bytes, gather_weights
from trainer.distributed.strategies import average_across_processes, compute_gradient_norm
from trainer.errors import (
    MAX_REASON,
    CompilationError,
    ModelError,
    attribute_to_model,
    is_backend_failure,
    is_compiler_missing,
    is_out_of_memory,
    to_one_line,
)
from trainer.ops.devices import release_cached_memory
from trainer.ops.losses import limit_chunk_positions
from trainer.ops.ngram_memory import get_row_gradients
from trainer.optim.optimizers import compile_steps
from trainer.training import compilation
from trainer.training.objective import Objective
from trainer.training.run import Run

MEMORY_SHARE = 0.6  # of the free memory; the rest is for what is not counted here and for other processes
GRADIENT_TOLERANCE = 0.25
"""Of the norm. Rounding of fp8 and other random numbers of the compiler stay far below, a lost gradient does not."""
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
    weights = sum(parameter.nbytes for parameter in list_densely_trained(objective))
    with torch.no_grad():
        vocabulary_size = objective.model(row[:, :1]).size(-1)
    logits = LOGIT_COPIES * 4 * limit_chunk_positions("cpu", vocabulary_size, 0) * vocabulary_size
    available = MEMORY_SHARE * free - 3 * weights - logits
    return max(1, int(available / max(1, measure_row_bytes(objective, row))))


def warm_up(run: Run, console: Console, row: Tensor) -> None:
    """Choose the run's micro-batch and compile the model. Changes nothing else. `row`: tokens `[1, T]`."""
    is_searching = run.resolved.device == "cuda"
    if run.fraction >= 1:
        return
    if not is_searching and run.resolved.micro_batch > 1:
        set_micro_batch(run, min(run.resolved.micro_batch, measure_cpu_micro_batch(run, row)))
    if run.resolved.compile or is_searching:
        started = time.perf_counter()
        if run.resolved.compile:
            console.print("compiling the model with torch.compile; this is not charged", highlight=False)
        while not try_pass(run, is_searching):
            set_micro_batch(run, run.resolved.micro_batch - 1)
        run.raw_model.zero_grad(set_to_none=True)
        compile_steps(run.optimizers)
        if run.resolved.compile and not run.resolved.is_sharded:
            check_compiled_gradients(run, row)
        if run.resolved.compile:
            run.compile_seconds += time.perf_counter() - started


def set_micro_batch(run: Run, limit: int) -> None:
    """Set the largest one up to a limit."""
    rows = find_largest_divisor(run.resolved.rows_per_device, limit)
    run.resolved = dataclasses.replace(run.resolved, micro_batch=rows)
    run.identity["train"]["micro_batch"] = rows


def measure_cpu_micro_batch(run: Run, row: Tensor) -> int:
    """Return how many rows fit into the memory of a CPU, the same in all processes."""
    with attribute_to_model("in a forward pass", 1), torch.compiler.set_stance("force_eager"):
        if run.resolved.is_sharded:
            with torch.no_grad():
                run.model(row, row)  # FSDP initializes itself in the first call of the whole model
        with gather_weights(run.objective):
            rows = choose_cpu_micro_batch(run.objective, row)
    return int(run.fabric.broadcast(rows))


def try_pass(run: Run, is_searching: bool) -> bool:
    """Run a pass over a micro-batch; return False if memory ran out and a smaller one can be tried."""
    rows = torch.zeros(run.resolved.micro_batch, run.resolved.sequence_length, dtype=torch.int64)
    rows = rows.to(run.fabric.device)
    fits = True
    try:
        missing = count_missing_state_bytes(run) if is_searching else 0
        momenta = torch.empty(missing, dtype=torch.uint8, device=run.fabric.device)
        with attribute_to_model("in its first pass", run.resolved.micro_batch):
            run_pass(run, rows)
        del momenta
    except ModelError as error:
        fits = not (is_searching and run.resolved.micro_batch > 1 and is_out_of_memory(error.__cause__))
        if fits:
            raise
    fits = average_across_processes(run.fabric, [fits]) == [1]
    if not fits:
        # Outside of the handler, whose traceback keeps references to the tensors.
        run.raw_model.zero_grad(set_to_none=True)
        release_cached_memory(run.fabric.device)
    return fits


def count_missing_state_bytes(run: Run) -> int:
    """Return the bytes that optimizers will allocate in training: momenta, at most two for each weight. A resumed run
    has them already."""
    trained = list_densely_trained(run.raw_model)
    weights = sum(4 * count_local_bytes(weight) // weight.itemsize for weight in trained)
    states = (each.state.get(weight, {}) for each in run.optimizers for weight in trained)
    state = sum(count_local_bytes(value) for each in states for value in each.values() if isinstance(value, Tensor))
    return max(0, 2 * weights - state) + count_row_gradient_bytes(run)


def list_densely_trained(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that have a gradient and momenta as large as they are: all but tables of n-grams."""
    return [p for p in model.parameters() if p.requires_grad and get_row_gradients(p) is None]


def count_row_gradient_bytes(run: Run) -> int:
    """Return the bytes of a step's gradients of tables of n-grams."""
    tokens = run.resolved.rows_per_device * run.resolved.sequence_length
    return sum(ROW_GRADIENTS * FP32 * tokens * memory.table[0].numel() for memory in run.objective.memories)


def run_pass(run: Run, rows: torch.Tensor) -> None:
    """Forward and backward as in training, forward as in evaluation.

    Raise `CompilationError` if only the compiled model fails.
    """
    try:
        run_forward_backward(run, rows)
    except Exception as error:
        if is_backend_failure(error) and not is_compiler_missing(error):
            with torch.compiler.set_stance("force_eager"):
                run_forward_backward(run, rows)
            raise CompilationError(
                f"torch.compile failed on this machine: {to_one_line(error)[:MAX_REASON]}"
            ) from error
        if not compilation.is_graph_break(error):
            raise
        # A model that does not compile as one graph is compiled as several.
        compilation.compile_objective(run.objective, run.resolved, fullgraph=False)
        run_forward_backward(run, rows)
    if run.resolved.compile:
        run.raw_model.eval()
        with torch.no_grad():
            run.model(rows, rows, per_position=True)
        run.raw_model.train()


def run_forward_backward(run: Run, rows: torch.Tensor) -> None:
    # No gradient exchange: a process that runs out of memory must not make the others wait in it.
    with run.fabric.no_backward_sync(run.model, enabled=run.resolved.strategy == "ddp"):
        run.fabric.backward(run.model(rows, rows) * 0)


def check_compiled_gradients(run: Run, row: Tensor) -> None:
    """Raise `CompilationError` if the compiled model's gradient differs from that of the same rows without a compiler.

    A compiler may compute an exact loss and wrong gradients. Rows are computed one at a time without it, which needs
    more memory for each.
    """
    length = run.resolved.sequence_length
    text = row.flatten().repeat(-(-2 * length // row.numel()))
    rows = torch.stack([text[start % length :][:length] for start in range(run.resolved.micro_batch)])
    compiled = measure_gradient_norm(run, [rows])
    with torch.compiler.set_stance("force_eager"):
        eager = measure_gradient_norm(run, rows.split(1))
    # What is not finite is the model's fault, which its first step reports.
    if math.isfinite(eager) and not abs(compiled - eager) <= GRADIENT_TOLERANCE * eager:
        raise CompilationError(
            f"torch.compile computes wrong gradients on this machine, with torch {torch.__version__}: their norm is"
            f" {compiled:.4g}, and {eager:.4g} without it. --train.compile false trains without it."
        )


def measure_gradient_norm(run: Run, parts: Iterable[Tensor]) -> float:
    """Return the norm of the gradient of all parts `[B, T]` together, on this device alone."""
    for rows in parts:
        with run.fabric.no_backward_sync(run.model, enabled=run.resolved.strategy == "ddp"):
            run.fabric.backward(run.model(rows, rows))
    norm = compute_gradient_norm(list(run.raw_model.parameters()))
    run.raw_model.zero_grad(set_to_none=True)
    return 0.0 if norm is None else float(norm)
