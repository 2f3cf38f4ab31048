"""Outcomes of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from trainer.errors import CRASH_SIGNALS, ExitCode, Fault, ProcessEnd, find_fault
from trainer.protocol import Cause
from trainer.sandbox import SandboxProcess
from trainer.sandbox.safe_files import read_json_object, sanitize_line

RESULT_BYTES = 256_000
CLAIMS_OF_PYTHON = ("model", "machine")
"""Faults that the Python of an entry may name: it could write any."""
EXIT_REASONS = {
    ExitCode.INFRASTRUCTURE: "it could not run on this node; the log says why",
    ExitCode.USER_ERROR: "its configuration is invalid; the log says why",
    ExitCode.MODEL_ERROR: "the model failed; the log says how",
}


@dataclass(frozen=True)
class JobOutcome:
    outcome: Literal["done", "failed", "released"]
    reason: str = ""
    fault: Fault = "machine"
    result: dict[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()  # small files of the `out` folder that are uploaded with the result

    @property
    def cause(self) -> Cause:
        return "model" if self.fault == "model" else "infrastructure"


class JobFailedError(Exception):
    """The job cannot continue. The message is a sentence for its contributor."""

    def __init__(self, reason: str, fault: Fault = "machine") -> None:
        super().__init__(reason)
        self.fault: Fault = fault


class JobInterruptedError(Exception):
    """The sponsor or the server has stopped the job; see `StopSignal`."""


def explain_failure(
    process: SandboxProcess, subject: str, is_graph: bool, report: Mapping[str, Any] | None = None
) -> JobFailedError:
    """Return why a process gave no result, and what is at fault (`trainer.errors.FAILURES`).

    `subject` begins the sentence: "The training". `is_graph`: it ran no code of an entry. `report`: what it wrote to
    `failure.json`.
    """
    code, report = process.poll(), report or {}
    limit: Literal["", "time", "other"] = ""
    if process.limit_error is not None:
        limit = "time" if process.is_out_of_time else "other"
    fault = find_fault(ProcessEnd(code, limit), is_graph)
    if process.limit_error is not None:
        return JobFailedError(f"{subject} was ended. {process.limit_error}", fault)
    if code in CRASH_SIGNALS:
        return JobFailedError(f"{subject}'s process crashed with {CRASH_SIGNALS[code]}.", fault)
    if code in EXIT_REASONS:
        if report.get("fault") in (get_args(Fault) if is_graph else CLAIMS_OF_PYTHON):
            fault = report["fault"]
        reason = sanitize_line(report.get("reason"))
        return JobFailedError(reason or f"{subject} failed: {EXIT_REASONS[ExitCode(code)]}.", fault)
    if code == ExitCode.OK:
        return JobFailedError(f"{subject} ended without a result.", fault)
    how = f"was killed from outside (signal {code - 128})" if code and code > 128 else f"ended with exit code {code}"
    return JobFailedError(f"{subject}'s process {how}.", fault)


def read_outcome(
    process: SandboxProcess, out: Path, subject: str, is_graph: bool, files: tuple[str, ...] = ()
) -> JobOutcome:
    """Return what a process wrote to `result.json`; raise `JobFailedError` if it failed. As `explain_failure`."""
    is_complete = process.limit_error is None and process.poll() == ExitCode.OK
    if is_complete and (result := read_json_object(out, "result.json", RESULT_BYTES)) is not None:
        return JobOutcome("done", result=result, files=files)
    raise explain_failure(process, subject, is_graph, read_json_object(out, "failure.json", RESULT_BYTES))
