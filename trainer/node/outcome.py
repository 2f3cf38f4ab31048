"""Outcomes of a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.protocol import Cause, Fault
from trainer.sandbox import SandboxProcess


@dataclass(frozen=True)
class JobOutcome:
    outcome: Literal["done", "failed", "released"]
    reason: str = ""
    cause: Cause = "infrastructure"
    fault: Fault | None = None  # None: the machine
    result: dict[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()  # small files of the `out` folder that are uploaded with the result


def find_limit_cause(process: SandboxProcess) -> Cause:
    """Return the cause of a job that exceeded a limit. Wall time depends on the machine and on what else it does."""
    return "infrastructure" if process.is_out_of_time else "model"


class JobFailedError(Exception):
    """The job cannot continue. The message is a sentence for its contributor."""

    def __init__(self, reason: str, cause: Cause = "infrastructure", fault: Fault | None = None) -> None:
        super().__init__(reason)
        self.cause: Cause = cause
        self.fault: Fault | None = fault


class JobInterruptedError(Exception):
    """The sponsor or the server has stopped the job; see `StopSignal`."""
