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

from trainer.checkpoint.files import atomic_write_json
from trainer.errors import OUT_OF_MEMORY, ExitCode
from trainer.trials.plan import Trial

SCORE, FAILED = "score.json", "failed.json"


class TrialError(RuntimeError):
    """A training or scoring process failed. The message is the last line of its output."""


class TrialModelError(TrialError):
    """The model could not be trained or scored: the same run would fail again."""


@dataclass
class TrialRunner:
    """Start processes of trials, and stop all of them together."""

    dataset: Path
    preset: str
    jobs: int  # runs at a time, one thread each: for small models faster than one run on all cores
    eager: bool = False  # train Python modules instead of graphs
    uses_dev: bool = False  # a run's last evaluation on dev instead of its score on test
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
            except BaseException:  # GeneratorExit and KeyboardInterrupt, too
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()
                raise

    def run_trial(self, trial: Trial) -> dict[str, Any]:
        """Train and score one trial, or resume it. A model that cannot be trained has the record `{"failed": REASON}`,
        which is kept."""
        try:
            return self.train_and_score(trial)
        except TrialModelError as error:
            trial.folder.mkdir(parents=True, exist_ok=True)
            atomic_write_json(trial.folder / FAILED, {"failed": str(error)})
            return {"failed": str(error)}

    def train_and_score(self, trial: Trial) -> dict[str, Any]:
        if not (trial.folder / "result.json").is_file():
            self.run_module(self.build_train_command(trial))
        if self.uses_dev:
            score = json.loads((trial.folder / "result.json").read_text())
        else:
            command = ["trainer.cli", "score", str(trial.folder), "--dataset", str(self.dataset), "--json"]
            score = json.loads(self.run_module(command))
        atomic_write_json(trial.folder / SCORE, score)
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
            # The same run may find enough memory later, with fewer beside it.
            is_final = process.returncode == ExitCode.MODEL_ERROR and OUT_OF_MEMORY not in last
            raise (TrialModelError if is_final else TrialError)(last)
        return out

    def stop(self) -> None:
        """Terminate all processes. A training process saves a checkpoint first."""
        with self.lock:
            self.is_stopping = True
            for process in self.running:
                process.terminate()


def load_record(trial: Trial) -> dict[str, Any] | None:
    """Return a finished trial as a record of `dailytrain multiplier`, None if it is not finished."""
    if (trial.folder / FAILED).is_file():
        return dict(json.loads((trial.folder / FAILED).read_text()))
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
