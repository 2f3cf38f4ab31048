"""Compile the model with torch.compile, and find the micro-batch that fits into a GPU. Imported where a run does so.

Two functions are compiled, each as one graph for fixed shapes: tokens to features, and a chunk of features to its loss.
With `fsdp` and `zero2` each block is compiled, since weights are gathered between blocks. So are blocks of recurrent
modules and of large graphs, equal blocks once, so that the time does not grow with the depth. It is reported as
`compile_seconds` and not charged to the budget.

The cache is in $DAILYTRAIN_CACHE, else below the home folder, else (as in a sandbox) in a temporary folder. A node's
jobs do not share it: it holds machine code, and one entry could replace another's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from torch import Tensor

from trainer.accounting.training_size import FP32, ROW_GRADIENTS
from trainer.config.train_config import ResolvedConfig
from trainer.distributed.devices import average_across_processes, compute_gradient_norm, get_local_tensor
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
from trainer.graph.blocks import count_calls, has_split_blocks, split_blocks
from trainer.graph.model import GraphModel
from trainer.ops.devices import get_row_gradients, raise_recompile_limit, release_cached_memory
from trainer.optim.optimizers import compile_steps, list_densely_trained
from trainer.training.objective import Objective
from trainer.training.run import Run

MAX_CALLS = 2000
"""Calls in a graph that is compiled as a whole. The compiler's time grows with them, to half an hour for rwkv5 at depth
24. A block of `gpt` has about 34; a recurrent model's has more for each chunk of a row."""
MAX_BLOCKS = 64  # that differ in a graph; torch's own limit is 8
GRADIENT_TOLERANCE = 0.25
"""Of the norm of a parameter's gradient. Rounding and other random numbers of the compiler stay below it; fp8 on a GPU
is assumed to, and has not been measured."""
NOISE_SHARE, LOST_SHARE = 1e-3, 1e-5
"""Of the norm of all gradients: a parameter's difference below the first is rounding, unless its gradient is lost. A
gradient may be nothing but rounding, such as that of a bias of all keys, which attention does not depend on."""
LEAST_SCALE = 0.5
"""Weights below it, relative to 1 / sqrt(fan-in), are moved for the check: behind zeros all gradients are zero."""
BACKEND = "inductor"  # tests use `aot_eager`, which generates no code and needs no compiler


def compile_objective(objective: Objective, resolved: ResolvedConfig, fullgraph: bool = True) -> None:
    """Compile the objective's functions at their first call. `fullgraph`: raise at a graph break."""
    model, options = objective.model, {"dynamic": False, "fullgraph": fullgraph, "backend": BACKEND}
    if resolved.is_sharded or not model.bounded:
        for block in model.repeated_blocks():
            block.compile(dynamic=False, backend=BACKEND)
    elif isinstance(model, GraphModel) and is_large(model):
        raise_recompile_limit(MAX_BLOCKS)
        for passes in (model.training_passes, model.evaluation_passes):
            for block in split_blocks(passes.features.module):
                block.compile(**options)
    else:
        objective.features = torch.compile(model.features, **options)
    objective.chunk_loss = torch.compile(objective.compute_chunk_loss, **options)


def is_large(model: GraphModel) -> bool:
    """Return whether a graph's blocks are compiled instead of the whole, which would take too long."""
    module = model.training_passes.features.module
    return has_split_blocks(module) or count_calls(module.graph, module) > MAX_CALLS


# --- the first pass ---------------------------------------------------------------------------------------------------


def compile_run(run: Run, console: Console, row: Tensor) -> None:
    """Find the largest micro-batch that fits into a GPU, and compile the model. Not charged. `row`: tokens `[1, T]`."""
    started = time.perf_counter()
    if run.resolved.compile:
        torch.compiler.reset()  # programs of earlier runs in this process count against torch's limit of 8
        console.print("compiling the model with torch.compile; this is not charged", highlight=False)
    while not try_pass(run, console, is_searching=run.resolved.device == "cuda"):
        run.set_micro_batch(run.resolved.micro_batch - 1)
    run.model.zero_grad(set_to_none=True)
    compile_steps(run.optimizers)
    if run.resolved.compile:
        check_compiled_gradients(run, row)
        run.compile_seconds += time.perf_counter() - started


def try_pass(run: Run, console: Console, is_searching: bool) -> bool:
    """Run a pass over a micro-batch; return False if memory ran out and a smaller one can be tried."""
    rows = torch.zeros(run.resolved.micro_batch, run.resolved.sequence_length, dtype=torch.int64)
    rows = rows.to(run.fabric.device)
    fits = True
    try:
        missing = count_missing_state_bytes(run) if is_searching else 0
        momenta = torch.empty(missing, dtype=torch.uint8, device=run.fabric.device)
        with attribute_to_model("in its first pass", run.resolved.micro_batch):
            run_pass(run, console, rows)
        del momenta
    except ModelError as error:
        fits = not (is_searching and run.resolved.micro_batch > 1 and is_out_of_memory(error.__cause__))
        if fits:
            raise
    fits = average_across_processes(run.fabric, [fits]) == [1]
    if not fits:
        # Outside of the handler, whose traceback keeps references to the tensors.
        run.model.zero_grad(set_to_none=True)
        release_cached_memory(run.fabric.device)
    return fits


def count_missing_state_bytes(run: Run) -> int:
    """Return the bytes that optimizers will allocate in training: momenta, at most two for each weight. A resumed run
    has them already."""
    trained = list_densely_trained(run.model)
    weights = sum(4 * get_local_tensor(weight).numel() for weight in trained)
    states = (each.state.get(weight, {}) for each in run.optimizers for weight in trained)
    state = sum(
        get_local_tensor(value).nbytes for each in states for value in each.values() if isinstance(value, Tensor)
    )
    return max(0, 2 * weights - state) + count_row_gradient_bytes(run)


def count_row_gradient_bytes(run: Run) -> int:
    """Return the bytes of a step's gradients of tables of n-grams."""
    tokens = run.resolved.rows_per_device * run.resolved.sequence_length
    return sum(ROW_GRADIENTS * FP32 * tokens * memory.table[0].numel() for memory in run.objective.memories)


def run_pass(run: Run, console: Console, rows: torch.Tensor) -> None:
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
        if not isinstance(error, torch._dynamo.exc.TorchDynamoException):  # which `fullgraph` raises
            raise
        line = f"the model is compiled as several graphs: {to_one_line(error)[:MAX_REASON]}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        compile_objective(run.objective, run.resolved, fullgraph=False)
        run_forward_backward(run, rows)
    if run.resolved.compile:
        run.model.eval()
        with torch.no_grad():
            run.wrapped(rows, rows, per_position=True)
        run.model.train()


def run_forward_backward(run: Run, rows: torch.Tensor) -> None:
    # No gradient exchange: a process that runs out of memory must not make the others wait in it.
    with run.fabric.no_backward_sync(run.wrapped, enabled=run.resolved.strategy == "ddp"):
        run.fabric.backward(run.wrapped(rows, rows) * 0)


def check_compiled_gradients(run: Run, row: Tensor) -> None:
    """Raise `CompilationError` if the compiled model's gradient differs from that of the same rows without a compiler.

    A compiler may compute an exact loss and wrong gradients. Rows are computed one at a time without it, which needs
    more memory for each.
    """
    length = run.resolved.sequence_length
    text = row.flatten().repeat(-(-2 * length // row.numel()))
    rows = torch.stack([text[start % length :][:length] for start in range(run.resolved.micro_batch)])
    with move_from_zero(run):
        compiled = measure_gradient_norms(run, [rows])
        with torch.compiler.set_stance("force_eager"):
            eager = measure_gradient_norms(run, rows.split(1))
    total = math.hypot(*eager.values())
    # What is not finite is the model's fault, which its first step reports.
    for name, norm in eager.items() if math.isfinite(total) else ():
        is_lost = compiled[name] == 0 and norm > LOST_SHARE * total
        if is_lost or not abs(compiled[name] - norm) <= max(GRADIENT_TOLERANCE * norm, NOISE_SHARE * total):
            raise CompilationError(
                f"torch.compile computes wrong gradients on this machine, with torch {torch.__version__}: the norm of"
                f" that of {name} is {compiled[name]:.4g}, and {norm:.4g} without it; {GRADIENT_TOLERANCE:.0%} is the"
                " tolerance. --train.compile false trains without it."
            )


@contextmanager
def move_from_zero(run: Run) -> Iterator[None]:
    """Context manager: weights that are zero or nearly so are normally distributed; afterwards all are as before.

    Copies of what is not zero wait in main memory. A table of n-grams, which may be larger, is moved if all is zero.
    """
    if run.resolved.is_sharded:
        from torch.distributed.fsdp import FSDPModule

        for module in run.wrapped.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # a forward pass without gradients leaves weights gathered, and these are not kept
    before: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for number, parameter in enumerate(p for p in run.model.parameters() if p.requires_grad):
            weight = get_local_tensor(parameter)  # may be empty
            scale = (parameter.size(-1) if parameter.dim() else 1) ** -0.5
            is_zero, is_table = not weight.any(), get_row_gradients(parameter) is not None
            if is_zero or (not is_table and weight.float().square().mean().sqrt() < LEAST_SCALE * scale):
                before.append((weight, torch.zeros(()) if is_zero else weight.to("cpu", copy=True)))
                weight.normal_(0, scale, generator=torch.Generator(weight.device).manual_seed(number))
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, values in before:
                weight.copy_(values)


def measure_gradient_norms(run: Run, parts: Iterable[Tensor]) -> dict[str, float]:
    """Return the norm of each parameter's gradient of all parts `[B, T]` together, on this device alone."""
    for rows in parts:
        with run.fabric.no_backward_sync(run.wrapped, enabled=run.resolved.strategy == "ddp"):
            run.fabric.backward(run.wrapped(rows, rows))
    found = {name: compute_gradient_norm([parameter]) for name, parameter in run.model.named_parameters()}
    run.model.zero_grad(set_to_none=True)
    return {name: 0.0 if norm is None else float(norm) for name, norm in found.items()}
