"""Training and scoring a rehearsal's runs, several at once, each in a process of its own.

What is done stays: a run that has its score is not made again, and one that was interrupted goes on from its last
checkpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.trials.plan import Trial

SCORE = "score.json"


class TrialError(RuntimeError):
    """A training or scoring process ended badly; the message is its own last line."""


@dataclass
class Workshop:
    """Where processes are started, and stopped all together."""

    dataset: Path
    preset: str
    jobs: int
    """Runs at a time, each with one thread: on small models that is faster than one run with all cores."""
    stopping: bool = False
    running: set[subprocess.Popen[str]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def results(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, dict[str, Any]]]:
        """Yield each trial with its result as it is ready: those from earlier first. Raises `TrialError`."""
        waiting = []
        for trial in trials:
            known = result(trial)
            if known is None:
                waiting.append(trial)
            else:
                yield trial, known
        with ThreadPoolExecutor(self.jobs) as pool:
            futures: dict[Future[dict[str, Any]], Trial] = {pool.submit(self.make, trial): trial for trial in waiting}
            left = set(futures)
            try:
                while left:
                    done, left = wait(left, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield futures[future], future.result()
            finally:
                for future in left:
                    future.cancel()
                self.stop()

    def make(self, trial: Trial) -> dict[str, Any]:
        """Train and score one run, or go on with it."""
        if not (trial.folder / "result.json").is_file():
            self.call(self.training(trial))
        score = ["trainer.cli", "score", str(trial.folder), "--dataset", str(self.dataset), "--json"]
        answer = self.call(score)
        aside = trial.folder / f".{SCORE}.partial"
        aside.write_text(answer)
        aside.replace(trial.folder / SCORE)
        made = result(trial)
        assert made is not None
        return made

    def training(self, trial: Trial) -> list[str]:
        return [
            "trainer.train",
            *("--preset", self.preset, "--dataset", str(self.dataset), "--out", str(trial.folder)),
            *("--arch", trial.entry.arch, "--budget", trial.budget, "--seed", str(trial.seed), "--threads", "1"),
            *("--train.sample_tokens", "0", "--train.evaluations", "1"),
            *trial.entry.flags,
        ]

    def call(self, command: Sequence[str]) -> str:
        """Run a module of ours and return its standard output. Raises `TrialError`."""
        with self.lock:
            if self.stopping:
                raise TrialError("stopped")
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            self.running.add(process)
        out, err = process.communicate()
        with self.lock:
            self.running.discard(process)
        if process.returncode != 0:
            last = (err.strip().splitlines() or [f"it ended with {process.returncode}"])[-1]
            raise TrialError(last)
        return out

    def stop(self) -> None:
        """Have every process stop; a training keeps a checkpoint first."""
        with self.lock:
            self.stopping = True
            for process in self.running:
                process.terminate()


def result(trial: Trial) -> dict[str, Any] | None:
    """Return a finished trial as one plain record of `dailytrain multiplier`; None if it is not finished."""
    try:
        score = json.loads((trial.folder / SCORE).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return {
        "entry": trial.entry.name,
        "seed": trial.seed,
        "flops": score["train_flops"],
        "seconds": score["train_seconds"],
        "bits_per_byte": score["bits_per_byte"],
    }
