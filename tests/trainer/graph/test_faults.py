"""Whose fault each kind of failure is (`trainer.errors.FAILURES`): real exceptions in real runs, and real processes."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tiny import TINY, TRACED_TRAINING
from tests.support.waits import WAIT_SECONDS
from trainer.checkpoint.store import get_checkpoint_path
from trainer.config.train_config import ConfigError
from trainer.distributed.devices import DeviceError
from trainer.errors import (
    FAILURES,
    CompilationError,
    DamagedDatasetError,
    DivergenceError,
    LookAheadError,
    ModelError,
    UnusableCheckpointError,
    attribute_to_model,
    find_failure,
)
from trainer.node.job_handlers import score
from trainer.node.job_handlers.train import describe_training
from trainer.node.outcome import JobFailedError
from trainer.sandbox import ResourceLimits, SandboxProcess, SandboxSpec, get_driver
from trainer.train import main
from trainer.training import loop

FLAGS = ("--budget", "4steps", "--checkpoint-every", "1steps", "--keep", "9")


@pytest.fixture
def train(dataset_folder: Path, traced_run: Path, tmp_path: Path) -> Callable[..., int]:
    """Train a graph; return the exit code."""

    def start(*flags: str) -> int:
        folders = ("--dataset", str(dataset_folder), "--graph", str(traced_run / "graph"), "--out", str(tmp_path))
        return main([*folders, *TRACED_TRAINING, *FLAGS, *flags])

    return start


def run_process(code: str, **limits: float) -> SandboxProcess:
    """Run Python code as a job's process, to its end."""
    usual: dict[str, Any] = {"wall_seconds": WAIT_SECONDS, "memory_bytes": 1 << 40, "disk_bytes": 1 << 40}
    spec = SandboxSpec(
        [sys.executable, "-I", "-S", "-c", code], {}, [], Path("/"), ResourceLimits(**usual | limits, processes=99)
    )
    process = get_driver("none").start(spec, subprocess.DEVNULL, subprocess.DEVNULL)
    process.wait(WAIT_SECONDS)
    return process


def end_with(code: int) -> SandboxProcess:
    return run_process(f"import sys; sys.exit({code})")


def end_by(number: signal.Signals) -> SandboxProcess:
    return run_process(f"import os; os.kill(os.getpid(), {number:d})")


NCCL = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, {}, NCCL version 2.27.5\nnccl{}"
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/{}"
EXCEPTIONS: dict[str, list[Exception]] = {
    "NaN or infinity, a singular matrix, gradient spikes without end": [
        DivergenceError("The loss became nan at step 2."),
        torch.linalg.LinAlgError("linalg.inv: The diagonal element 3 is zero, the inversion could not be completed"),
    ],
    "later tokens, or knowledge that was not trained": [LookAheadError("The untrained model predicts the text.")],
    "one row does not fit into memory": [torch.cuda.OutOfMemoryError("CUDA out of memory."), MemoryError()],
    "several rows do not fit into memory": [
        torch.cuda.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1099511627776 bytes."),
    ],
    "memory ran out elsewhere, as in reading data": [MemoryError()],
    "a kernel was given bad values (`device-side assert`)": [
        torch.AcceleratorError("CUDA error: device-side assert triggered"),
    ],
    "another process of the run is lost": [
        torch.distributed.DistBackendError(
            NCCL.format("remote process exited or there was a network error", "RemoteError: A call failed possibly")
        ),
        RuntimeError(GLOO.format("pair.cc:553] Connection closed by peer [127.0.0.1]:11468.")),
        RuntimeError(GLOO.format("unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete")),
    ],
    "a GPU, its driver, cuBLAS, cuDNN or NCCL failed": [
        torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m)`"),
        torch.distributed.DistBackendError(
            NCCL.format("unhandled cuda error", "UnhandledCudaError: Call to CUDA function failed.")
        ),
    ],
    "torch.compile failed or computes wrong gradients": [
        CompilationError("torch.compile computes wrong gradients on this machine"),
        RuntimeError("Failed to find C compiler. Please specify via CC environment variable."),
    ],
    "a disk is full or failed": [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EIO, "I/O error")],
    "no thread could be started": [RuntimeError("can't start new thread")],
    "a GPU is missing, a dataset is damaged": [
        DamagedDatasetError(Path("/data/train/00001.bin"), "is damaged"),
        DeviceError("devices 8: torch finds 1 here"),
    ],
    "the checkpoint to resume from is unusable": [UnusableCheckpointError("its manifest cannot be read")],
    "a configuration or a model that nothing can train": [
        ConfigError("no group of the recipe matches head.weight"),
        ModelError("No parameter of the model gets a gradient."),
    ],
    "any other exception while the model computes": [
        RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
        RuntimeError("NCCL is a library: this is the text of an entry's own exception"),
        ZeroDivisionError("division by zero"),
    ],
    "any other exception": [TypeError("a bug of the trainer")],
}
ENDS: dict[str, list[Callable[[], SandboxProcess]]] = {
    "the limit of wall time": [lambda: run_process("import time; time.sleep(60)", wall_seconds=0.2)],
    "a limit of memory, disk or processes": [
        lambda: run_process("import time; held = b'x' * 10**8; time.sleep(60)", memory_bytes=5 * 10**7)
    ],
    "SIGILL, SIGABRT, SIGBUS, SIGFPE or SIGSEGV": [
        partial(end_by, getattr(signal, name)) for name in ("SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV")
    ],
    "SIGKILL or another signal": [partial(end_by, signal.SIGKILL), partial(end_by, signal.SIGTERM)],
    "it could not run (exit code 1)": [partial(end_with, 1)],
    "bad input without a report (exit code 2)": [partial(end_with, 2)],
    "another exit code, or no result": [partial(end_with, 0), partial(end_with, 3), partial(end_with, 77)],
}
ROWS = {row.label: row for row in FAILURES}


def test_every_kind_of_failure_has_an_example() -> None:
    assert [*EXCEPTIONS, *ENDS] == list(ROWS)


OUTSIDE_OF_THE_MODEL = ("any other exception", "memory ran out elsewhere, as in reading data")


def choose_micro_batch(label: str) -> int:
    return 1 if label.startswith("one row") else 2


@pytest.mark.parametrize(
    ("label", "error"), [(label, error) for label, errors in EXCEPTIONS.items() for error in errors], ids=str
)
def test_exception_is_of_its_kind(label: str, error: Exception) -> None:
    is_outside = label in OUTSIDE_OF_THE_MODEL
    context = nullcontext() if is_outside else attribute_to_model("in a step", choose_micro_batch(label))
    with pytest.raises((type(error), ModelError, CompilationError)) as raised, context:
        raise error
    assert find_failure(raised.value).label == label


QUICK = ("NaN or infinity, a singular matrix, gradient spikes without end", "a disk is full or failed")
"""Of these, one is the graph's fault and one the machine's."""


@pytest.mark.parametrize(
    ("label", "is_graph"),
    [
        pytest.param(label, is_graph, marks=[] if is_graph and label in QUICK else pytest.mark.slow)
        for label in EXCEPTIONS
        for is_graph in (True, False)
        if is_graph or ROWS[label].graph != ROWS[label].python
    ],
)
def test_exception_in_a_run_blames_what_its_row_says(
    label: str,
    is_graph: bool,
    train: Callable[..., int],
    dataset_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> None:
        raise EXCEPTIONS[label][0]

    monkeypatch.setattr(loop, "charge_step" if label in OUTSIDE_OF_THE_MODEL else "update_weights", fail)
    flags = ("--train.micro-batch", str(choose_micro_batch(label)))
    if is_graph:
        code = train(*flags)
    else:
        code = main(["--dataset", str(dataset_folder), "--out", str(tmp_path), *TINY, *FLAGS, *flags])
    expected = ROWS[label].graph if is_graph else ROWS[label].python
    if label == "another process of the run is lost":  # the other process has the reason
        assert not (tmp_path / "failure.json").exists()
    assert describe_training(end_with(code), tmp_path, is_graph).fault == expected


@pytest.mark.parametrize("label", ENDS)
def test_end_of_a_process_blames_what_its_row_says(label: str, tmp_path: Path) -> None:
    for process in (end() for end in ENDS[label]):
        for is_graph in (True, False):
            expected = ROWS[label].graph if is_graph else ROWS[label].python
            assert describe_training(process, tmp_path, is_graph).fault == expected
            if process.poll() != 0:
                with pytest.raises(JobFailedError) as failed:
                    score.read_outcome(process, None, is_graph)
                assert failed.value.fault == expected


@pytest.mark.slow
def test_graph_run_without_usable_checkpoint_blames_checkpoint(train: Callable[..., int], tmp_path: Path) -> None:
    assert train() == 0
    for step in (3, 4):
        folder = get_checkpoint_path(tmp_path, step)
        for file in folder.iterdir():
            file.unlink()
    (tmp_path / "result.json").unlink()
    (get_checkpoint_path(tmp_path, 4) / "manifest.json").write_bytes(b"\x00" * 700)
    code = train()
    assert describe_training(end_with(code), tmp_path, is_graph=True).fault == "checkpoint"


@pytest.mark.parametrize("fault", ["checkpoint", "order", "model"])
def test_code_of_entry_can_blame_neither_checkpoint_nor_order(fault: str, tmp_path: Path) -> None:
    (tmp_path / "failure.json").write_text(json.dumps({"fault": fault, "reason": "It is damaged."}))
    assert describe_training(end_with(1), tmp_path, is_graph=False).fault == (
        "model" if fault == "model" else "machine"
    )
    with pytest.raises(JobFailedError, match="It looks ahead") as error:
        score.read_outcome(end_with(3), {"failed": "It looks ahead.", "fault": fault}, is_graph=True)
    assert error.value.fault == fault
