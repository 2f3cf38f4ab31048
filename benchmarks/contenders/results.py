"""The runs of contenders in a JSON file: finished runs are not repeated."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders.base import (
    SEQUENCE_LENGTH,
    BuildContender,
    DivergedError,
    Factors,
    Plan,
    Size,
    train_contender,
)
from trainer.checkpoint.files import atomic_write_json
from trainer.data.dataset import Dataset

Row = dict[str, Any]
IDENTITY = ("entry", "size", "budget", "seed", "rows", "factors", "source", "dataset")


@dataclass(frozen=True)
class Entry:
    """A contender by name, and the hash of the code that it trains with."""

    name: str
    build: BuildContender
    source: str


@dataclass(frozen=True)
class Trainer:
    """Train runs that the file does not have yet."""

    file: Path
    dataset: Dataset
    report: Callable[[str], None]

    def load(self) -> dict[str, Any]:
        return dict(json.loads(self.file.read_text())) if self.file.is_file() else {"runs": []}

    def save(self, **changes: Any) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(self.file, {**self.load(), **changes})

    def run(self, entry: Entry, size: Size, share: float, seed: int, factors: Factors, rows: int, part: str) -> Row:
        """Return a run's row: from the file, or trained now. A run that diverged has `diverged` and no loss."""
        budget = size.budget * share
        identity = {
            "entry": entry.name,
            "size": size.name,
            "budget": budget,
            "seed": seed,
            "rows": rows,
            "factors": dataclasses.asdict(factors),
            "source": entry.source,
            "dataset": self.dataset.hash,
        }
        runs: list[Row] = self.load()["runs"]
        found = next((row for row in runs if all(row[name] == identity[name] for name in IDENTITY)), None)
        if found is None:
            found = {**identity, "part": part, **self.train(entry.build, size, budget, seed, factors, rows)}
            self.save(runs=[*runs, found])
            self.report(describe_run(found))
        return found

    def train(
        self, build: BuildContender, size: Size, budget: float, seed: int, factors: Factors, rows: int
    ) -> dict[str, Any]:
        vocabulary = self.dataset.manifest["tokenizer"]["vocabulary_size"]
        plan = Plan(size, factors, seed, vocabulary, rows * SEQUENCE_LENGTH, budget)
        try:
            return dataclasses.asdict(train_contender(build, plan, self.dataset))
        except DivergedError as error:
            return {"diverged": str(error), "bits_per_byte": None}


def describe_run(row: Row) -> str:
    loss = row["bits_per_byte"]
    outcome = row["diverged"] if loss is None else f"{loss:.4f} bits per byte, {row['cpu_seconds']:.1f} CPU-seconds"
    factors = " ".join(f"{name} {value:.3g}" for name, value in row["factors"].items() if value is not None)
    run = f"{row['entry']} {row['size']}, {row['budget']:.3g} FLOPs, {row['rows']} rows, seed {row['seed']}, {factors}"
    return f"{row['part']}: {run}: {outcome}"


def hash_files(files: Iterable[Path]) -> str:
    """Return a short hash of files' names and contents."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:10]


def select_runs(runs: Sequence[Row], /, **values: Any) -> list[Row]:
    """Return the runs with these values that did not diverge."""
    return [
        run
        for run in runs
        if run["bits_per_byte"] is not None and all(run[name] == value for name, value in values.items())
    ]
