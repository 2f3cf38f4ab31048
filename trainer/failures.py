"""How a run can end badly, whose fault that is, and the exit code that says so."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

DONE, INFRASTRUCTURE, USER, MODEL, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes: finished; ours or the machine's fault; bad input; the model's own fault; stopped by a signal."""

LONGEST = 400
"""Characters of a reason: a sentence, not a traceback."""


class ModelFailure(Exception):
    """The architecture or its recipe is at fault; the message is a sentence for its author."""


class Interrupted(Exception):
    """A signal asked the run to stop; a checkpoint has been written."""


class ProcessLost(Exception):
    """Another process of this run has ended."""


class CompilerMissingError(Exception):
    """torch.compile found no C compiler on this machine, or on a CPU no C++ compiler."""

    def __init__(self) -> None:
        super().__init__(
            "torch.compile found no C compiler on this machine: install gcc and libc6-dev (on a CPU also g++), "
            "or name a compiler in CC."
        )


@contextmanager
def models_fault(doing: str) -> Iterator[None]:
    """Whatever goes wrong in here is a stranger's code at fault: say what it was doing."""
    try:
        yield
    except (ModelFailure, ProcessLost, CompilerMissingError):
        raise
    except Exception as error:
        if is_compiler_missing(error):
            raise CompilerMissingError from error
        if process_lost(error):
            raise ProcessLost("Another process of this run has ended.") from error
        if out_of_memory(error):
            raise ModelFailure(
                f"Out of memory {doing}: with a smaller --train.micro-batch or with --train.activation-checkpointing "
                "true it needs less, and goes on from its last checkpoint."
            ) from error
        said = " ".join(str(error).split())[:LONGEST]
        raise ModelFailure(f"{type(error).__name__} {doing}: {said}") from error


def out_of_memory(error: BaseException | None) -> bool:
    """Is this how Python, torch on a CPU (an ordinary RuntimeError) or torch on a GPU says so?"""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "you tried to allocate" in str(error))
    )


def disk_full(error: BaseException | None) -> bool:
    """Is this how a file system, a quota or a limit on file sizes says so?"""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def no_thread(error: BaseException | None) -> bool:
    """Is this how Python says that the machine, or a limit of it, lets no more threads run?"""
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


def process_lost(error: BaseException | None) -> bool:
    """Is this how gloo or NCCL says that another process does not answer any more?"""
    told = str(error)
    return type(error).__name__.startswith("Dist") or (
        isinstance(error, RuntimeError) and any(word in told for word in ("gloo", "NCCL", "Connection closed by peer"))
    )


def is_compiler_missing(error: BaseException | None) -> bool:
    """Return whether torch.compile failed because the machine has no compiler: Triton's message, Inductor's for C++.

    The message is looked for in the text, since torch.compile wraps the error in one of its own types.
    """
    return any(message in str(error) for message in ("Failed to find C compiler", "No working C++ compiler found"))


def expected(error: Exception) -> bool:
    """Does the sentence say it all, so that a traceback would only stand in the way?"""
    cause = error.__cause__
    if isinstance(error, ModelFailure):
        return cause is None or out_of_memory(cause)
    return (
        isinstance(error, ValueError | ProcessLost | CompilerMissingError)
        or disk_full(error)
        or out_of_memory(error)
        or no_thread(error)
        or process_lost(error)
    )


def sentence(error: Exception) -> str:
    """Say in one line what broke a run that was not the model's fault, and what to do."""
    said = " ".join(str(error).split())
    if disk_full(error):
        where = f" at {error.filename}" if isinstance(error, OSError) and error.filename else ""
        full = error.strerror if isinstance(error, OSError) else said
        return f"The disk is full{where} ({full}): make room, and the same command goes on from the last checkpoint."
    if out_of_memory(error):
        return "Out of memory: make room, and the same command goes on from the last checkpoint."
    if no_thread(error):
        return (
            "No thread could be started: let more processes run, and the same command goes on from the last checkpoint."
        )
    if isinstance(error, CompilerMissingError):
        return f"{said} The same command then goes on from the last checkpoint."
    if isinstance(error, ValueError):
        return f"{said}; the same command then goes on from the last checkpoint"
    if isinstance(error, ProcessLost) or process_lost(error):
        return ""  # the other one has something to say, or whoever started both
    return f"The training process broke: {type(error).__name__}: {said}"


def record(run_folder: Path, cause: Literal["model", "infrastructure"], reason: str) -> None:
    """Write `failure.json` for whoever started the run."""
    with suppress(OSError):  # a full disk may be what is to be recorded
        run_folder.mkdir(parents=True, exist_ok=True)
        (run_folder / "failure.json").write_text(json.dumps({"cause": cause, "reason": reason[: LONGEST + 100]}))
