"""The runs of contenders, a JSON line each: finished runs are not repeated, an interrupted one is resumed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
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

    def load(self) -> list[Row]:
        text = self.file.read_text() if self.file.is_file() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def append(self, row: Row) -> None:
        """Append a line, on the disk before this returns, in place of one that was not written to its end."""
        with self.file.open("ab+") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(json.dumps(row).encode() + b"\n")
            os.fsync(file.fileno())

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
        found = next((row for row in self.load() if all(row.get(name) == identity[name] for name in IDENTITY)), None)
        if found is None:
            vocabulary = self.dataset.manifest["tokenizer"]["vocabulary_size"]
            plan = Plan(size, factors, seed, vocabulary, rows * SEQUENCE_LENGTH, budget)
            digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:10]
            snapshot = self.file.with_name(f"{self.file.stem}-{digest}.pt")
            snapshot.parent.mkdir(parents=True, exist_ok=True)
            try:
                outcome = dataclasses.asdict(train_contender(entry.build, plan, self.dataset, snapshot))
            except DivergedError as error:
                outcome = {"diverged": str(error), "bits_per_byte": None}
            found = {**identity, "part": part, **outcome}
            self.append(found)
            snapshot.unlink(missing_ok=True)
            self.report(describe_run(found))
        return found


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
        if run.get("bits_per_byte") is not None and all(run[name] == value for name, value in values.items())
    ]
