"""Errors that every package may raise, exit codes, and whose fault a failure is.

`FAILURES` alone decides whose fault an exception or the end of a process is; `docs/reference/faults.md` is made of it.

A command reports a `UserError` in one line and exits with `ExitCode.USER_ERROR`. Any other exception is a bug or a
broken machine and keeps its traceback.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple

RESUME_HINT = "Run the same command again to resume from the last checkpoint."
MAX_REASON = 400  # characters of a reason: a sentence, not a traceback
CRASH_SIGNALS = {
    132: "an illegal instruction",
    134: "an abort",
    135: "a bus error",
    136: "an arithmetic error",
    139: "a segmentation fault",
}
"""Exit codes of processes that the kernel killed: 128 + the signal's number."""
ACCELERATOR_FAILURES = ("CUDA error", "CUDA driver error", "CUBLAS_STATUS_", "CUDNN_STATUS_", "cuDNN error")
KERNEL_FAILURES = ("device-side assert", "illegal memory access", "misaligned address")
"""CUDA errors that a kernel of an entry's own Python can cause."""
LOST_PROCESS = ("Connection closed by peer", "Connection reset by peer", "ncclRemoteError", "imed out", "timeout")
"""What gloo, NCCL and torch's store say of a process that no longer answers."""
Fault = Literal["model", "machine", "checkpoint", "order"]
"""What is at fault, by the node: the entry's model, this machine, the checkpoint to resume from, which cannot be used,
or the order, which no machine can carry out. All but "machine" are claims that the site checks."""


class ExitCode(IntEnum):
    """Exit codes of all commands."""

    OK = 0
    INFRASTRUCTURE = 1  # our fault or the machine's: the job may be retried
    USER_ERROR = 2
    MODEL_ERROR = 3  # the architecture's or its recipe's fault
    INTERRUPTED = 130  # stopped by a signal


class UserError(ValueError):
    """Bad input. The message is one line that says what to change."""


class ModelError(Exception):
    """The architecture or its recipe is at fault; the message is a sentence for its author."""


class GraphFaultError(ModelError):
    """What a graph computed is at fault. In the run of a graph no code of the entry runs, so nothing else is."""


class DivergenceError(GraphFaultError):
    """A graph computed NaN or infinity, or its gradients do not come down again."""


class LookAheadError(GraphFaultError):
    """A graph predicts text with what it cannot have learned."""


class RowMemoryError(GraphFaultError):
    """One row of a graph does not fit into the machine's memory."""


class MachineError(UserError):
    """This machine lacks something, or a file on it is damaged."""


class UnusableCheckpointError(UserError):
    """A run cannot resume from its newest checkpoint, on any machine."""


class TrainingInterrupted(Exception):
    """A signal requested a stop between two steps."""


class ProcessLostError(Exception):
    """Another process of this run has ended."""


def to_one_line(error: object) -> str:
    """Return a message with all whitespace collapsed to single spaces."""
    return " ".join(str(error).split())


def print_error(command: str, message: object, code: int) -> int:
    """Print `command: message` as one line on standard error and return the exit code."""
    sys.stderr.write(f"{command}: {to_one_line(message)}\n")
    return code


class CompilationError(Exception):
    """torch.compile failed for a model that runs without it: this machine's fault, or ours."""


class CompilerMissingError(CompilationError):
    """torch.compile found no C compiler on this machine, or on a CPU no C++ compiler."""

    def __init__(self) -> None:
        super().__init__(
            "torch.compile found no C compiler on this machine: install gcc and libc6-dev (on a CPU also g++), "
            "or name a compiler in CC."
        )


OUT_OF_MEMORY = "Out of memory"


@contextmanager
def attribute_to_model(activity: str, micro_batch: int | None = None) -> Iterator[None]:
    """Turn errors of the block into `ModelError`s, except those of the machine.

    `activity` ends the message: "in a forward pass". `micro_batch`: rows of the block's passes.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ModelError):
            raise
        if is_out_of_memory(error):
            raise (RowMemoryError if micro_batch == 1 else ModelError)(
                f"{OUT_OF_MEMORY} {activity}: try a smaller --train.micro-batch or --train.activation-checkpointing "
                "true. The run resumes from its last checkpoint."
            ) from error
        if find_failure(error) in FAILURES_OF_MACHINES:
            raise
        if is_compiler_missing(error):
            raise CompilerMissingError from error
        if type(error).__name__ == "_LinAlgError":  # of torch: a singular matrix
            reason = to_one_line(error)[:MAX_REASON]
            raise DivergenceError(f"A matrix cannot be inverted {activity}: {reason}") from error
        raise ModelError(f"{type(error).__name__} {activity}: {to_one_line(error)[:MAX_REASON]}") from error


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether Python, torch on a CPU (a plain RuntimeError) or torch on a GPU ran out of memory."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "you tried to allocate" in str(error))
    )


def is_raised_by_torch(error: object) -> bool:
    """Return whether the type is that of errors of an accelerator or, as those of NCCL, of torch's processes."""
    return isinstance(error, RuntimeError) and type(error).__name__.startswith(("AcceleratorError", "Dist"))


def is_accelerator_failure(error: object) -> bool:
    """Return whether a GPU, its driver or a library of the driver failed, or a kernel that was given bad values.

    Running out of memory raises another type in torch; "CUDA error: out of memory" means that other processes use it.
    """
    is_named = isinstance(error, RuntimeError) and any(text in str(error) for text in ACCELERATOR_FAILURES)
    return is_named or is_raised_by_torch(error)


def is_kernel_failure(error: object) -> bool:
    return is_accelerator_failure(error) and any(text in str(error) for text in KERNEL_FAILURES)


def is_process_lost(error: object) -> bool:
    """Return whether gloo or NCCL reports that another process no longer answers. That one reports the reason."""
    is_of_torch = is_raised_by_torch(error) or (isinstance(error, RuntimeError) and "gloo/transport/" in str(error))
    return isinstance(error, ProcessLostError) or (is_of_torch and any(text in str(error) for text in LOST_PROCESS))


def is_disk_full(error: object) -> bool:
    """Return whether a file system, a quota or a limit on file sizes refused a write."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_disk_failure(error: object) -> bool:
    is_broken = isinstance(error, OSError) and error.errno in (errno.EIO, errno.EROFS, errno.ESTALE, errno.EMFILE)
    return is_broken or is_disk_full(error)


def is_thread_limit(error: object) -> bool:
    """Return whether the machine, or one of its limits, lets no more threads start."""
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


def is_compiler_missing(error: BaseException | None) -> bool:
    """Return whether torch.compile failed because the machine has no compiler.

    The text is searched for Triton's and Inductor's message, since torch.compile wraps errors in its own types.
    """
    return any(message in str(error) for message in ("Failed to find C compiler", "No working C++ compiler found"))


def is_backend_failure(error: BaseException | None) -> bool:
    """Return whether torch.compile itself, or what it started, failed; running out of memory is not that."""
    while error is not None:
        module, name = type(error).__module__, type(error).__name__
        inner = getattr(error, "inner_exception", None)  # of torch._dynamo's BackendCompilerFailed
        if is_out_of_memory(error) or is_out_of_memory(inner):
            return False
        is_generator = module.startswith(("torch._inductor.", "triton."))
        if is_generator or name in ("BackendCompilerFailed", "InternalTorchDynamoError"):
            return True
        error = error.__cause__
    return False


def explain_error(error: Exception) -> str | None:
    """Return one line that says what broke and what to do; None if only a traceback does.

    The line is empty if another process, or the launcher, reports the reason.
    """
    message = to_one_line(error)
    if isinstance(error, ModelError):
        return str(error) if error.__cause__ is None or is_out_of_memory(error.__cause__) else None
    if is_disk_full(error):
        assert isinstance(error, OSError)
        where = f" at {error.filename}" if error.filename else ""
        return f"The disk is full{where} ({error.strerror}): free some space. {RESUME_HINT}"
    if is_out_of_memory(error):
        return f"Out of memory: free some memory. {RESUME_HINT}"
    if is_thread_limit(error):
        return f"No thread could be started: raise the limit on processes. {RESUME_HINT}"
    if isinstance(error, CompilationError | UserError):
        return f"{message.rstrip('.')}. {RESUME_HINT}"
    return "" if is_process_lost(error) else None


# --- whose fault a failure is -----------------------------------------------------------------------------------------


class ProcessEnd(NamedTuple):
    """How a process ended, as its sandbox saw it, without a report of its own."""

    code: int | None = None
    limit: Literal["", "time", "other"] = ""  # that it exceeded and was killed for


class Failure(NamedTuple):
    """A kind of failure, and what is at fault."""

    label: str
    graph: Fault
    """Where no code of an entry runs, as in the run of a graph: training, scoring, generation, replay."""
    python: Fault  # where the Python of an entry runs
    matches: Callable[[Any], bool]  # takes an exception or a `ProcessEnd`


def is_a(*types: type[BaseException]) -> Callable[[Any], bool]:
    return lambda error: isinstance(error, types)


def has_code(*codes: int) -> Callable[[Any], bool]:
    return lambda end: isinstance(end, ProcessEnd) and not end.limit and end.code in codes


def has_limit(limit: str) -> Callable[[Any], bool]:
    return lambda end: isinstance(end, ProcessEnd) and end.limit == limit


def is_bad_input(error: object) -> bool:
    return isinstance(error, UserError) or (isinstance(error, ModelError) and error.__cause__ is None)


def is_model_out_of_memory(error: object) -> bool:
    return isinstance(error, ModelError) and is_out_of_memory(error.__cause__)


OTHER_EXCEPTIONS = (
    Failure("any other exception while the model computes", "machine", "model", is_a(ModelError)),
    Failure("any other exception", "machine", "machine", is_a(Exception)),
)
FAILURES = (
    Failure("NaN or infinity, a singular matrix, gradient spikes without end", "model", "model", is_a(DivergenceError)),
    Failure("later tokens, or knowledge that was not trained", "model", "model", is_a(LookAheadError)),
    Failure("one row does not fit into memory", "model", "model", is_a(RowMemoryError)),
    Failure("several rows do not fit into memory", "machine", "model", is_model_out_of_memory),
    Failure("memory ran out elsewhere, as in reading data", "machine", "machine", is_out_of_memory),
    Failure("a kernel was given bad values (`device-side assert`)", "machine", "model", is_kernel_failure),
    Failure("another process of the run is lost", "machine", "machine", is_process_lost),
    Failure("a GPU, its driver, cuBLAS, cuDNN or NCCL failed", "machine", "machine", is_accelerator_failure),
    Failure("torch.compile failed or computes wrong gradients", "machine", "machine", is_a(CompilationError)),
    Failure("a disk is full or failed", "machine", "machine", is_disk_failure),
    Failure("no thread could be started", "machine", "machine", is_thread_limit),
    Failure("a GPU is missing, a dataset is damaged", "machine", "machine", is_a(MachineError)),
    Failure("the checkpoint to resume from is unusable", "checkpoint", "machine", is_a(UnusableCheckpointError)),
    Failure("a configuration or a model that nothing can train", "order", "model", is_bad_input),
    *OTHER_EXCEPTIONS,
    Failure("the limit of wall time", "machine", "machine", has_limit("time")),
    Failure("a limit of memory, disk or processes", "machine", "model", has_limit("other")),
    Failure("SIGILL, SIGABRT, SIGBUS, SIGFPE or SIGSEGV", "machine", "model", has_code(*CRASH_SIGNALS)),
    Failure("SIGKILL or another signal", "machine", "machine", has_code(*range(129, 193))),
    Failure("it could not run (exit code 1)", "machine", "machine", has_code(ExitCode.INFRASTRUCTURE)),
    Failure("bad input without a report (exit code 2)", "order", "model", has_code(ExitCode.USER_ERROR)),
    Failure("another exit code, or no result", "machine", "model", lambda end: isinstance(end, ProcessEnd)),
)
"""The first one that matches decides."""
FAILURES_OF_MACHINES = [row for row in FAILURES if row.graph == row.python == "machine" and row not in OTHER_EXCEPTIONS]


def find_failure(failed: Exception | ProcessEnd) -> Failure:
    """Return the kind of a failure. A `ModelError` is judged by its cause, if that says more."""
    is_wrapped = isinstance(failed, ModelError) and not isinstance(failed, GraphFaultError)
    cause = failed.__cause__ if is_wrapped else None
    known = (row for row in FAILURES if row not in OTHER_EXCEPTIONS)
    found = next((row for row in known if row.matches(failed) or (cause is not None and row.matches(cause))), None)
    return found or next(row for row in FAILURES if row.matches(failed))


def is_machine_failure(error: Exception) -> bool:
    """Return whether it is known that memory, a disk, a thread, another process or a GPU of this machine failed."""
    is_system_error = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
    failure = find_failure(error)
    return is_system_error or (failure.graph == "machine" and failure not in OTHER_EXCEPTIONS)


def find_fault(failed: Exception | ProcessEnd, is_graph: bool) -> Fault:
    """Return what is at fault. `is_graph`: no code of an entry runs."""
    failure = find_failure(failed)
    return failure.graph if is_graph else failure.python


def write_failure(run_folder: Path, fault: Fault, reason: str) -> None:
    """Write `failure.json`, which the node reads."""
    with suppress(OSError):  # the failure may be a full disk
        run_folder.mkdir(parents=True, exist_ok=True)
        # `cause`: for agents that know no fault of the model.
        cause = "model" if fault == "model" else "infrastructure"
        content = {"cause": cause, "fault": fault, "reason": reason[: MAX_REASON + 100]}
        (run_folder / "failure.json").write_text(json.dumps(content))


# --- corpora, tokenizers and datasets ---------------------------------------------------------------------------------
# Errors of corpora, tokenizers and datasets. Each message is one line that says what to change.


class CorpusError(UserError):
    """The corpus does not exist or cannot be read."""


class TokenizerError(UserError):
    """The tokenizer cannot be read, or does not reproduce every text byte for byte."""


class DatasetError(UserError):
    """The dataset cannot be prepared or read."""


class UnsuitableCorpusError(DatasetError):
    """No dataset can be made of the corpus."""


class DamagedDatasetError(DatasetError, MachineError):
    """A file differs from the manifest."""

    def __init__(self, path: Path, problem: str) -> None:
        """`path` is a file in a split's folder of the dataset."""
        super().__init__(f"{path} {problem}: delete the folder {path.parent.parent} and prepare the dataset again")


def describe_exception(error: Exception) -> str:
    """Return a library's message as one line of at most 160 characters, or the name of its type."""
    return to_one_line(error)[:160] or type(error).__name__
