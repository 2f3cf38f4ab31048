"""Before the clock starts: translate the model, and find how many rows the memory takes. Not charged to the budget."""

from __future__ import annotations

import dataclasses
import time

import torch
from rich.console import Console

from trainer.distributed.strategies import agree
from trainer.errors import ModelError, attribute_to_model, is_out_of_memory
from trainer.training import compilation
from trainer.training.random_state import get_random_state, restore_random_state
from trainer.training.run import Run, write_run_json


def warm_up(run: Run, console: Console, undecided: bool) -> None:
    """Run one pass that leaves no trace but what torch.compile made of it.

    `undecided`: nobody has said how many rows pass at once; on a GPU it is decided here, by trying.
    """
    trying = undecided and run.resolved.device == "cuda"
    if run.fraction >= 1 or not (run.resolved.compile or trying):
        return
    started = time.perf_counter()
    if run.resolved.compile:
        console.print("translating the model with torch.compile; this is not charged", highlight=False)
    before = get_random_state()
    while not passes(run, trying):
        rows = next(d for d in range(run.resolved.micro_batch - 1, 0, -1) if run.resolved.rows_per_device % d == 0)
        run.resolved = dataclasses.replace(run.resolved, micro_batch=rows)
        run.identity["train"]["micro_batch"] = rows
    run.raw_model.zero_grad(set_to_none=True)
    restore_random_state(before)
    if run.resolved.compile:
        run.compile_seconds += time.perf_counter() - started
    write_run_json(run)


def passes(run: Run, trying: bool) -> bool:
    """Make one pass over as many rows as training will; False if they are too many and there may be fewer."""
    rows = torch.zeros(run.resolved.micro_batch, run.resolved.sequence_length, dtype=torch.int64)
    rows = rows.to(run.fabric.device)
    fits = True
    try:
        # In training there are momenta, too: at most two for each weight.
        weights = sum(weight.nbytes for weight in run.raw_model.parameters() if weight.requires_grad) if trying else 0
        momenta = torch.empty(2 * weights, dtype=torch.uint8, device=run.fabric.device)
        with attribute_to_model("in its first pass"):
            one_pass(run, rows)
        del momenta
    except ModelError as failure:
        fits = not (trying and run.resolved.micro_batch > 1 and is_out_of_memory(failure.__cause__))
        if fits:
            raise
    fits = agree(run.fabric, [fits]) == [1]
    if not fits:
        # Outside of the handler, whose traceback holds on to the tensors.
        run.raw_model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
    return fits


def one_pass(run: Run, rows: torch.Tensor) -> None:
    """Forward and backward as in training, forward as in evaluation."""
    try:
        there_and_back(run, rows)
    except Exception as error:
        if not compilation.is_graph_break(error):
            raise
        # What cannot be translated in one piece is translated in several.
        compilation.compile_objective(run.objective, run.resolved, whole=False)
        there_and_back(run, rows)
    if run.resolved.compile:
        run.raw_model.eval()
        with torch.no_grad():
            run.model(rows, rows, each=True)
        run.raw_model.train()


def there_and_back(run: Run, rows: torch.Tensor) -> None:
    # One process may have too little memory where others have enough: they must not wait for it in here.
    with run.fabric.no_backward_sync(run.model, enabled=run.resolved.strategy == "ddp"):
        run.fabric.backward(run.model(rows, rows) * 0)
