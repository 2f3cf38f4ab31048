"""What the process of a stage uses: figures as JSON lines, and its turn on the GPU.

The driver starts a stage with `STAGE`, `FOLDER`, `OUT` (or "") and, in a rehearsal, `REHEARSAL` in its environment.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import torch

from trainer.ops.devices import synchronize

STAGE, FOLDER, OUT, REHEARSAL = "GPU_STAGE", "GPU_FOLDER", "GPU_OUT", "GPU_REHEARSAL"
RESULTS = "results.jsonl"
SKIPPED = 77  # exit code of a stage that lacks a part
POLL_SECONDS = 0.02
IMPORTED = time.monotonic()  # when this process began


def is_rehearsal() -> bool:
    return bool(os.environ.get(REHEARSAL))


def get_device() -> torch.device:
    return torch.device("cpu" if is_rehearsal() else "cuda")


def get_folder() -> Path:
    return Path(os.environ[FOLDER])


def get_dataset() -> Path:
    return get_folder() / "dataset"


def write_line(folder: Path, values: dict[str, Any]) -> None:
    """Append one line of results, on the disk before it returns."""
    with (folder / RESULTS).open("a") as file:
        file.write(json.dumps(values, default=float) + "\n")
        file.flush()
        os.fsync(file.fileno())


def emit(**values: Any) -> None:
    """Write a figure of this stage."""
    line = {"stage": os.environ[STAGE], "at": round(time.time(), 1), **values}
    for folder in filter(None, (os.environ[FOLDER], os.environ.get(OUT))):
        write_line(Path(folder), line)


def skip(missing: str) -> NoReturn:
    """End this stage, which is not done, since it lacks a part."""
    emit(skipped=missing)
    raise SystemExit(SKIPPED)


@contextmanager
def report_failure(part: str) -> Iterator[None]:
    """Report an error of the block, and go on."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        emit(part=part, failed=f"{type(error).__name__}: {error}"[:400])


def wait_for_turn() -> None:
    """Tell the driver that this stage has compiled what it can, and wait until the GPU is its own."""
    device = get_device()
    if device.type == "cuda":
        synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    stage, folder = os.environ[STAGE], get_folder()
    (folder / f"{stage}.ready").touch()
    started = time.monotonic()
    emit(ready_s=round(started - IMPORTED, 1))
    while not (folder / f"{stage}.go").exists():
        time.sleep(POLL_SECONDS)
    emit(waited_s=round(time.monotonic() - started, 1))


class NotItsTurnError(Exception):
    """Ends the call of a compiled graph by a stage that only compiles."""


class Turn:
    """Takes the stage's turn at the first call of a compiled graph after `arm`, or when `take` is called.

    Backward graphs are compiled together with forward graphs, so that all is compiled before the turn.
    """

    def __init__(self) -> None:
        self.is_armed = self.is_taken = self.is_compiling = False
        self.graphs = 0  # compiled before the turn
        import torch._functorch.config
        import torch._inductor.output_code as output_code

        torch._functorch.config.force_non_lazy_backward_lowering = True
        torch.compiler.reset = lambda: None  # a run would discard what was compiled before the turn
        call_graph, turn = output_code.CompiledFxGraph.__call__, self

        def call(graph: Any, inputs: Any) -> Any:
            if turn.is_compiling:
                raise NotItsTurnError
            if turn.is_armed:
                turn.take()
            return call_graph(graph, inputs)

        output_code.CompiledFxGraph.__call__ = call

    @contextmanager
    def only_compile(self) -> Iterator[None]:
        """End the block at the first call of a compiled graph, which it only compiles."""
        self.is_compiling = True
        try:
            with suppress(NotItsTurnError):
                yield
        finally:
            self.is_compiling = False

    def arm(self) -> None:
        self.is_armed = not self.is_taken

    def take(self) -> None:
        self.is_armed = False
        if not self.is_taken:
            self.is_taken, self.graphs = True, count_graphs()
            wait_for_turn()

    def emit_compilations(self) -> None:
        """Write how many graphs were compiled before the turn, and how many in it, which should be none."""
        emit(compiled=self.graphs, compiled_in_turn=count_graphs() - self.graphs)


def count_graphs() -> int:
    """Return how many graphs torch.compile has compiled in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def measure_ms(work: Callable[[], Any], repeats: int = 12, warm_up: int = 3) -> float:
    """Return the median duration of a call in milliseconds."""
    device, warm_up = get_device(), 0 if is_rehearsal() else warm_up
    durations = []
    for number in range(warm_up + (1 if is_rehearsal() else repeats)):
        synchronize(device)
        started = time.perf_counter()
        work()
        synchronize(device)
        if number >= warm_up:
            durations.append(1e3 * (time.perf_counter() - started))
    return statistics.median(durations)


def run_python(*arguments: str, seconds: float) -> tuple[int, str, float]:
    """Run Python in this project; return exit code (124: out of time), standard output and duration."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=sys.stderr, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return 124, "", time.monotonic() - started
    return done.returncode, done.stdout, time.monotonic() - started


def compute_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the norm of the difference over the norm of `wanted`."""
    return float((found.detach().double() - wanted.detach().double()).norm() / wanted.detach().double().norm())
