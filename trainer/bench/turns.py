"""Contenders in turns: their processes, and what came of each turn."""

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

from trainer.bench.spec import Spec


class Failed(ValueError):
    """A contender ended before it was done; the message is the last line that it left."""


class Process:
    """A contender's process, as a context: it does not outlive it."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.complaints: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        threads = str(spec.shape.threads)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainer.bench.contender", spec.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()
        self.complaints.close()

    def ask(self, question: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{question}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` says why

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer; raise `Failed` if there will be none."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.complaints.seek(0)
        lines = self.complaints.read().strip().splitlines()
        raise Failed(lines[-1] if lines else f"it ended with exit code {self.process.returncode}")


@dataclass
class Row:
    """What is known of a contender."""

    spec: Spec
    process: Process
    tokens_per_second: list[float] = field(default_factory=list)
    """One figure a repeat, in the order of the repeats."""
    facts: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.tokens_per_second)


class Turns:
    """All contenders, started together. One that fails keeps its sentence, and the others go on."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self.specs = specs

    def __enter__(self) -> Self:
        self.rows: list[Row] = []
        with ExitStack() as stack:
            for spec in self.specs:
                self.rows.append(Row(spec, stack.enter_context(Process(spec))))
            for row in self.rows:
                self.note(row, "")
            self.warm_up()
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def warm_up(self) -> None:
        """First steps one contender after another: threads of several would get in each other's way. Compiling takes
        minutes and one core, so it is done side by side."""
        compiled = [row for row in self.running if row.spec.compiled]
        for row in compiled:
            row.process.ask("first")
        for row in self.running:
            self.note(row, "" if row in compiled else "first")

    def note(self, row: Row, question: str) -> dict[str, Any]:
        """Ask a contender (or wait for an answer that is due) and keep it; an error ends the contender's part."""
        if question:
            row.process.ask(question)
        try:
            answer = row.process.answer()
        except Failed as failure:
            row.error = str(failure)
            return {}
        row.facts.update(answer)
        return answer

    @property
    def running(self) -> list[Row]:
        return [row for row in self.rows if not row.error]

    def repeat(self, steps: int) -> None:
        """Give everyone a turn."""
        for row in self.running:
            seconds = self.note(row, f"run {steps}").pop("seconds", None)
            if seconds:
                row.tokens_per_second.append(steps * row.spec.shape.tokens / seconds)

    def report(self) -> None:
        """Ask what everyone's part cost, and what the machine can do."""
        for row in self.running:
            self.note(row, "report")


def timed_turns(turns: Turns, *, steps: int, repeats: int, deadline: float) -> int:
    """Make up to `repeats` repeats, as many as end before the deadline (on `time.monotonic`), but one. Return how many.

    The deadline counts on the next repeat to take as long as the last one.
    """
    made, last = 0, 0.0
    while made < repeats and turns.running and (made < 1 or time.monotonic() + last < deadline):
        started = time.monotonic()
        turns.repeat(steps)
        made, last = made + 1, time.monotonic() - started
    return made
