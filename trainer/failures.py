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


@contextmanager
def models_fault(doing: str) -> Iterator[None]:
    """Whatever goes wrong in here is a stranger's code at fault: say what it was doing."""
    try:
        yield
    except (ModelFailure, ProcessLost):
        raise
    except Exception as error:
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


def expected(error: Exception) -> bool:
    """Does the sentence say it all, so that a traceback would only stand in the way?"""
    cause = error.__cause__
    if isinstance(error, ModelFailure):
        return cause is None or out_of_memory(cause)
    return (
        isinstance(error, ValueError | ProcessLost)
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
