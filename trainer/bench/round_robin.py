"""Run the processes of all contenders in turns and collect their results."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, Any, Self

from trainer.bench.spec import ContenderSpec


class ContenderError(Exception):
    """A contender's process ended early. The message is the last line of its standard error."""


class ContenderProcess:
    """A contender's process as a context manager, which kills it at the end."""

    def __init__(self, spec: ContenderSpec) -> None:
        self.spec = spec
        self.errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        threads = str(spec.shape.threads)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainer.bench.contender", spec.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()
        self.errors.close()

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{command}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `receive` reports the reason

    def receive(self) -> dict[str, Any]:
        """Wait for the next line of JSON. Raise `ContenderError` if the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        raise ContenderError(lines[-1] if lines else f"it ended with exit code {self.process.returncode}")


@dataclass
class ContenderResult:
    """Measurements of a contender."""

    spec: ContenderSpec
    process: ContenderProcess
    tokens_per_second: list[float] = field(default_factory=list)  # one value for each repeat
    facts: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.tokens_per_second)


class RoundRobin:
    """All contenders, started together. If one fails its error is recorded and the others continue."""

    def __init__(self, specs: Sequence[ContenderSpec]) -> None:
        self.specs = specs

    def __enter__(self) -> Self:
        self.results: list[ContenderResult] = []
        with ExitStack() as stack:
            for spec in self.specs:
                self.results.append(ContenderResult(spec, stack.enter_context(ContenderProcess(spec))))
            for row in self.results:
                self.query(row)
            self.warm_up()
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def warm_up(self) -> None:
        """Train the first steps of one contender after another, so that their threads do not compete. Compilation takes
        minutes on one core, so it runs in parallel."""
        compiled = [row for row in self.running if row.spec.compiled]
        for row in compiled:
            row.process.send("warm_up")
        for row in self.running:
            self.query(row, "" if row in compiled else "warm_up")

    def query(self, row: ContenderResult, command: str = "") -> dict[str, Any]:
        """Send a command, if any, and store the response. An error excludes the contender from then on."""
        if command:
            row.process.send(command)
        try:
            response = row.process.receive()
        except ContenderError as error:
            row.error = str(error)
            return {}
        row.facts.update(response)
        return response

    @property
    def running(self) -> list[ContenderResult]:
        return [row for row in self.results if not row.error]

    def repeat(self, steps: int) -> None:
        """Let each contender train `steps`."""
        for row in self.running:
            seconds = self.query(row, f"run {steps}").pop("seconds", None)
            if seconds:
                row.tokens_per_second.append(steps * row.spec.shape.tokens / seconds)

    def report(self) -> None:
        """Query memory, FLOPs and peak FLOP/s of each contender."""
        for row in self.running:
            self.query(row, "report")


def run_repeats(round_robin: RoundRobin, *, steps: int, repeats: int, deadline: float) -> int:
    """Run at most `repeats` repeats, at least one, until the deadline (of `time.monotonic`). Return their number.

    A repeat is expected to take as long as the previous one.
    """
    done, last = 0, 0.0
    while done < repeats and round_robin.running and (done < 1 or time.monotonic() + last < deadline):
        started = time.monotonic()
        round_robin.repeat(steps)
        done, last = done + 1, time.monotonic() - started
    return done
