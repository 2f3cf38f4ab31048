"""A job's limit of wall time catches hangs: progress moves it, and reaching it is never the model's fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainer.errors import ExitCode, write_failure
from trainer.node.job import Job
from trainer.node.job_handlers.swarm import describe_sampling
from trainer.node.outcome import JobFailedError
from trainer.node.stop_signal import StopLevel
from trainer.sandbox import ResourceLimits, SandboxSpec
from trainer.sandbox.process import SandboxProcess

LIMITS = ResourceLimits(wall_seconds=820, memory_bytes=1 << 40, disk_bytes=1 << 40, processes=1000)


class SlowProcess(SandboxProcess):
    """A process whose every check takes `step` seconds, and in which `work` happens then; it ends at `end`."""

    def __init__(self, work: Callable[[float], None], end: float, step: float = 50) -> None:
        super().__init__(SandboxSpec(["true"], {}, [], Path("/"), LIMITS), 1, 2)
        self._work, self._end, self._step, self.now = work, end, step, 0.0

    @property
    def seconds(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> int | None:
        self.now += self._step
        self._work(self.now)
        return self.poll()

    def poll(self) -> int | None:
        if self.limit_error is None and self._meter.is_out_of_time(self.now):
            self.limit_error, self.is_out_of_time = f"It ran longer than {self._meter.wall_seconds:.0f} seconds.", True
        if self.limit_error is not None:
            return 137
        return ExitCode.OK if self.now >= self._end else None


def wait_for_process(process: SandboxProcess, progress: Path | None) -> None:
    job = cast(Any, SimpleNamespace(stop_signal=SimpleNamespace(level=StopLevel.NONE, error=None)))
    Job._wait_for_process(job, process, can_finish=False, progress=progress)


def test_slow_training_that_makes_progress_runs_to_its_end(tmp_path: Path) -> None:
    """Of a budget that takes 8,000 seconds here, 10 % are done when the template's limit is reached."""
    metrics = tmp_path / "metrics.jsonl"

    def write_line(now: float) -> None:
        with metrics.open("a") as file:
            file.write("{}\n")

    process = SlowProcess(write_line, end=8000)
    wait_for_process(process, metrics)
    assert (process.poll(), process.limit_error, process.now) == (ExitCode.OK, None, 8000)


def test_training_that_hangs_ends_after_twice_its_time(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    process = SlowProcess(lambda now: now == 600 and metrics.write_text("{}\n"), end=8000)  # type: ignore[arg-type, return-value]
    wait_for_process(process, metrics)
    assert (process.is_out_of_time, process.now) == (True, 1250)


def test_training_of_an_entrys_python_has_a_fixed_limit(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    process = SlowProcess(lambda now: metrics.write_text("{}" * int(now)), end=8000)  # type: ignore[arg-type, return-value]
    wait_for_process(process, None)
    assert (process.is_out_of_time, process.now) == (True, 850)


@pytest.mark.parametrize(
    ("code", "limit_error", "reason", "fault"),
    [
        (ExitCode.USER_ERROR, None, "no worker is at stage 2", "order"),
        (-9, "It used too much memory.", r"It used too much memory\.$", "order"),
        (1, None, "Sampling from the swarm failed", "machine"),
    ],
)
def test_failed_sampling_from_a_swarm_blames_the_node_for_crashes_only(
    code: int, limit_error: str | None, reason: str, fault: str, tmp_path: Path
) -> None:
    if code == ExitCode.USER_ERROR:
        write_failure(tmp_path, "order", reason)
    process = SlowProcess(lambda now: None, end=1)
    process.poll = lambda: code  # type: ignore[method-assign]
    process.limit_error = limit_error
    with pytest.raises(JobFailedError, match=reason) as error:
        describe_sampling(process, tmp_path)
    assert error.value.fault == fault
