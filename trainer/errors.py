"""Errors that every package may raise, exit codes, and whose fault a failure is.

A command reports a `UserError` in one line and exits with `ExitCode.USER_ERROR`. Any other exception is a bug or a
broken machine and keeps its traceback.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Literal

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
Cause = Literal["model", "infrastructure"]
Fault = Literal["machine", "checkpoint", "order"]
"""What failed if the cause is the infrastructure: `trainer.protocol.Fault`."""


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
    """What a graph computed is at fault: NaN, infinity, a singular matrix, later tokens, one row without memory.

    In the run of a graph no code of the entry runs, so every other failure is the machine's or ours (`find_cause`).
    """


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
    except (ModelError, ProcessLostError, CompilationError, UnusableCheckpointError):
        raise
    except Exception as error:
        if is_compiler_missing(error):
            raise CompilerMissingError from error
        if is_process_lost(error):
            raise ProcessLostError("Another process of this run has ended.") from error
        if is_accelerator_failure(error):
            raise
        if type(error).__name__ == "_LinAlgError":  # of torch: a singular matrix
            reason = to_one_line(error)[:MAX_REASON]
            raise GraphFaultError(f"A matrix cannot be inverted {activity}: {reason}") from error
        if is_out_of_memory(error):
            raise (GraphFaultError if micro_batch == 1 else ModelError)(
                f"{OUT_OF_MEMORY} {activity}: try a smaller --train.micro-batch or --train.activation-checkpointing "
                "true. The run resumes from its last checkpoint."
            ) from error
        raise ModelError(f"{type(error).__name__} {activity}: {to_one_line(error)[:MAX_REASON]}") from error


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether Python, torch on a CPU (a plain RuntimeError) or torch on a GPU ran out of memory."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "you tried to allocate" in str(error))
    )


def is_accelerator_failure(error: BaseException | None) -> bool:
    """Return whether a GPU, its driver or a library of the driver failed, and not a kernel that was given bad values.

    Running out of memory raises another type in torch; "CUDA error: out of memory" means that other processes use it.
    """
    message = str(error)
    return (
        isinstance(error, RuntimeError)
        and any(text in message for text in ACCELERATOR_FAILURES)
        and not any(text in message for text in KERNEL_FAILURES)
    )


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether a file system, a quota or a limit on file sizes refused a write."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_machine_failure(error: BaseException | None) -> bool:
    """Return whether memory, a disk, a thread, another process or a GPU of this machine failed."""
    is_disk_failure = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
    is_memory_failure = is_out_of_memory(error) or is_thread_limit(error)
    return is_disk_failure or is_memory_failure or is_process_lost(error) or is_accelerator_failure(error)


def is_thread_limit(error: BaseException | None) -> bool:
    """Return whether the machine, or one of its limits, lets no more threads start."""
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


def is_process_lost(error: BaseException | None) -> bool:
    """Return whether gloo or NCCL reports that another process no longer answers."""
    message = str(error)
    return type(error).__name__.startswith("Dist") or (
        isinstance(error, RuntimeError)
        and any(word in message for word in ("gloo", "NCCL", "Connection closed by peer"))
    )


def is_compiler_missing(error: BaseException | None) -> bool:
    """Return whether torch.compile failed because the machine has no compiler.

    The text is searched for Triton's and Inductor's message, since torch.compile wraps errors in its own types.
    """
    return any(message in str(error) for message in ("Failed to find C compiler", "No working C++ compiler found"))


def is_backend_failure(error: BaseException | None) -> bool:
    """Return whether torch.compile's code generation, or what it started, failed; running out of memory is not that."""
    while error is not None:
        module, name = type(error).__module__, type(error).__name__
        inner = getattr(error, "inner_exception", None)  # of torch._dynamo's BackendCompilerFailed
        if is_out_of_memory(error) or is_out_of_memory(inner):
            return False
        if name == "BackendCompilerFailed" or module.startswith(("torch._inductor.", "triton.")):
            return True
        error = error.__cause__
    return False


def is_expected(error: Exception) -> bool:
    """Return whether the message explains everything, so that no traceback is needed."""
    cause = error.__cause__
    if isinstance(error, ModelError):
        return cause is None or is_out_of_memory(cause)
    return (
        isinstance(error, UserError | ProcessLostError | CompilationError)
        or is_disk_full(error)
        or is_out_of_memory(error)
        or is_thread_limit(error)
        or is_process_lost(error)
    )


def describe_error(error: Exception) -> str:
    """Return one line for a failure that was not the model's fault: what broke and what to do."""
    message = to_one_line(error)
    if is_disk_full(error):
        where = f" at {error.filename}" if isinstance(error, OSError) and error.filename else ""
        full = error.strerror if isinstance(error, OSError) else message
        return f"The disk is full{where} ({full}): free some space. {RESUME_HINT}"
    if is_out_of_memory(error):
        return f"Out of memory: free some memory. {RESUME_HINT}"
    if is_thread_limit(error):
        return f"No thread could be started: raise the limit on processes. {RESUME_HINT}"
    if isinstance(error, CompilationError):
        return f"{message} {RESUME_HINT}"
    if isinstance(error, UserError):
        return f"{message}. {RESUME_HINT}"
    if isinstance(error, ProcessLostError) or is_process_lost(error):
        return ""  # the other process, or the launcher, reports the reason
    return f"The training process broke: {type(error).__name__}: {message}"


def find_cause(error: Exception, is_graph: bool) -> tuple[Cause, Fault]:
    """Return whose fault a run's failure is. `is_graph`: the run trains a graph, without any code of the entry."""
    if isinstance(error, GraphFaultError) or (isinstance(error, ModelError) and not is_graph):
        return "model", "machine"
    if isinstance(error, UnusableCheckpointError):
        return "infrastructure", "checkpoint"
    is_ours = isinstance(error, UserError) or (isinstance(error, ModelError) and error.__cause__ is None)
    return "infrastructure", "order" if is_graph and is_ours else "machine"


def write_failure(run_folder: Path, cause: Cause, reason: str, fault: Fault = "machine") -> None:
    """Write `failure.json`, which the node reads."""
    with suppress(OSError):  # the failure may be a full disk
        run_folder.mkdir(parents=True, exist_ok=True)
        content = {"cause": cause, "reason": reason[: MAX_REASON + 100]}
        content |= {"fault": fault} if cause == "infrastructure" else {}
        (run_folder / "failure.json").write_text(json.dumps(content))
