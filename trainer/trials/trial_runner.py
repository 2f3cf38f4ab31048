"""Train and score trials, several at a time, each in its own process.

Finished trials are not repeated, and interrupted ones resume from their last checkpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.trials.plan import Trial

SCORE = "score.json"


class TrialError(RuntimeError):
    """A training or scoring process failed. The message is the last line of its output."""


@dataclass
class TrialRunner:
    """Start processes of trials, and stop all of them together."""

    dataset: Path
    preset: str
    jobs: int  # runs at a time, one thread each: for small models faster than one run on all cores
    eager: bool = False  # train Python modules instead of graphs
    is_stopping: bool = False
    running: set[subprocess.Popen[str]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run_trials(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, dict[str, Any]]]:
        """Yield each trial with its record when it is ready, finished ones first. Raises `TrialError`."""
        unfinished = []
        for trial in trials:
            if (record := load_record(trial)) is None:
                unfinished.append(trial)
            else:
                yield trial, record
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = {pool.submit(self.run_trial, trial): trial for trial in unfinished}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()

    def run_trial(self, trial: Trial) -> dict[str, Any]:
        """Train and score one trial, or resume it."""
        if not (trial.folder / "result.json").is_file():
            self.run_module(self.build_train_command(trial))
        score = ["trainer.cli", "score", str(trial.folder), "--dataset", str(self.dataset), "--json"]
        output = self.run_module(score)
        partial = trial.folder / f".{SCORE}.partial"
        partial.write_text(output)
        partial.replace(trial.folder / SCORE)
        record = load_record(trial)
        assert record is not None
        return record

    def build_train_command(self, trial: Trial) -> list[str]:
        return [
            "trainer.train",
            *("--preset", self.preset, "--dataset", str(self.dataset), "--out", str(trial.folder)),
            *("--arch", trial.entry.arch, "--budget", trial.budget, "--seed", str(trial.seed), "--threads", "1"),
            *("--train.sample_tokens", "0", "--train.evaluations", "1"),
            *trial.entry.flags,
            *(["--eager"] if self.eager else []),
        ]

    def run_module(self, command: Sequence[str]) -> str:
        """Run `python -m COMMAND` and return its standard output. Raises `TrialError`."""
        with self.lock:
            if self.is_stopping:
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
        """Terminate all processes. A training process saves a checkpoint first."""
        with self.lock:
            self.is_stopping = True
            for process in self.running:
                process.terminate()


def load_record(trial: Trial) -> dict[str, Any] | None:
    """Return a finished trial as a record of `dailytrain multiplier`, None if it is not finished."""
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
