"""Before the clock starts: compile the model and choose the micro-batch, the rows of one forward pass.

On a GPU the micro-batch is found by trying: after each pass that runs out of memory the next smaller divisor is tried.
On a CPU, where the kernel would kill the process, it is computed from what one row keeps for the backward pass and
from the free memory. Nothing here is charged to the budget.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable

import torch
from rich.console import Console
from torch import Tensor

from trainer.config.resolve import find_largest_divisor
from trainer.distributed.devices import get_free_memory_bytes
from trainer.distributed.strategies import average_across_processes
from trainer.errors import ModelError, attribute_to_model, is_out_of_memory
from trainer.ops.losses import max_chunk_positions
from trainer.training import compilation
from trainer.training.checkpointing import write_run_json
from trainer.training.objective import Objective
from trainer.training.random_state import get_random_state, restore_random_state
from trainer.training.run import Run

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

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in mine:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        result = compute()
    del result  # only now: what was kept must not make room for what is still to come
    return sum(kept.values())


def choose_cpu_micro_batch(objective: Objective, row: Tensor, rows: int) -> int:
    """Return how many of `rows` to pass at once: a divisor of them."""
    free = get_free_memory_bytes()
    # Gradients and momenta are still to come, each as large as the weights.
    weights = sum(parameter.nbytes for parameter in objective.parameters() if parameter.requires_grad)
    with torch.no_grad():
        vocabulary_size = objective.model(row[:, :1]).size(-1)
    logits = max_chunk_positions("cpu", vocabulary_size) * vocabulary_size
    room = MEMORY_SHARE * free - 3 * weights - LOGITS * 4 * logits
    return find_largest_divisor(rows, max(1, int(room / max(1, measure_row_bytes(objective, row)))))


def warm_up(run: Run, console: Console, is_open: bool) -> None:
    """Run one pass that changes nothing but torch.compile's cache.

    `is_open`: the micro-batch is neither given nor saved with the run; on a GPU it is found here.
    """
    is_searching = is_open and run.resolved.device == "cuda"
    if run.fraction >= 1 or not (run.resolved.compile or is_searching):
        return
    started = time.perf_counter()
    if run.resolved.compile:
        console.print("compiling the model with torch.compile; this is not charged", highlight=False)
    before = get_random_state()
    while not try_pass(run, is_searching):
        rows = next(d for d in range(run.resolved.micro_batch - 1, 0, -1) if run.resolved.rows_per_device % d == 0)
        run.resolved = dataclasses.replace(run.resolved, micro_batch=rows)
        run.identity["train"]["micro_batch"] = rows
    run.raw_model.zero_grad(set_to_none=True)
    restore_random_state(before)
    if run.resolved.compile:
        run.compile_seconds += time.perf_counter() - started
    write_run_json(run)


def try_pass(run: Run, is_searching: bool) -> bool:
    """Run a pass over a micro-batch; return False if memory ran out and a smaller one can be tried."""
    rows = torch.zeros(run.resolved.micro_batch, run.resolved.sequence_length, dtype=torch.int64)
    rows = rows.to(run.fabric.device)
    fits = True
    try:
        # In training there are momenta, too: at most two for each weight.
        weights = (
            sum(weight.nbytes for weight in run.raw_model.parameters() if weight.requires_grad) if is_searching else 0
        )
        momenta = torch.empty(2 * weights, dtype=torch.uint8, device=run.fabric.device)
        with attribute_to_model("in its first pass"):
            run_pass(run, rows)
        del momenta
    except ModelError as failure:
        fits = not (is_searching and run.resolved.micro_batch > 1 and is_out_of_memory(failure.__cause__))
        if fits:
            raise
    fits = average_across_processes(run.fabric, [fits]) == [1]
    if not fits:
        # Outside of the handler, whose traceback keeps references to the tensors.
        run.raw_model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
    return fits


def run_pass(run: Run, rows: torch.Tensor) -> None:
    """Forward and backward as in training, forward as in evaluation."""
    try:
        run_forward_backward(run, rows)
    except Exception as error:
        if not compilation.is_graph_break(error):
            raise
        # What cannot be compiled as one graph is compiled as several.
        compilation.compile_objective(run.objective, run.resolved, whole=False)
        run_forward_backward(run, rows)
    if run.resolved.compile:
        run.raw_model.eval()
        with torch.no_grad():
            run.model(rows, rows, each=True)
        run.raw_model.train()


def run_forward_backward(run: Run, rows: torch.Tensor) -> None:
    # No gradient exchange: a process that runs out of memory must not make the others wait in it.
    with run.fabric.no_backward_sync(run.model, enabled=run.resolved.strategy == "ddp"):
        run.fabric.backward(run.model(rows, rows) * 0)
