"""What a rehearsal trains: the baseline's ladder, kept for the next idea, and the idea at the full budget.

Each run has a folder of its own whose name carries a hash of what would change its numbers: the source files of the
trainer and of the architecture, the flags, the dataset. So editing an idea trains it anew, and only it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trainer
from trainer.accounting.budget import Budget
from trainer.models import ARCHITECTURES, PRESETS, UnknownArchitectureError

BASELINE = "gpt"
RUNGS = (0.25, 0.5, 1.0, 2.0)
BUDGET = "4e12flops"
"""Half a minute of two cores: the whole ladder takes some minutes once, an idea about two."""
SEEDS = 3
KEY = 10
"""Hexadecimal digits of a hash in a folder's name."""


class PlanError(ValueError):
    """This rehearsal cannot be run."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An architecture, and the flags of `dailytrain train` that make it another one."""

    arch: str
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        options = " ".join(flag.removeprefix("--").partition(".")[2].replace("=", " ") for flag in self.flags)
        return f"{self.arch}, {options}" if options else self.arch


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training and its score."""

    entry: Entry
    budget: str
    share: float
    """Of the full budget."""
    seed: int
    folder: Path

    def __str__(self) -> str:
        share = "" if self.share == 1 else f" at {self.share:g} of the budget"
        return f"{self.entry.name}{share}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    baseline: Entry
    idea: Entry
    trials: tuple[Trial, ...]
    """In the order to run them: the full budget first, for an early answer, then the ladder's other rungs."""


def plan(
    idea: Entry, *, budget: str, rungs: Sequence[float], seeds: int, dataset: str, preset: str, folder: Path
) -> Plan:
    """Return the trials of a rehearsal. `dataset`: its hash. Raises `PlanError` or `UnknownArchitecture`."""
    full, baseline = Budget.parse(budget), Entry(arch=BASELINE)
    if len(set(rungs)) < 2 or 1.0 not in rungs or min(rungs) <= 0:
        raise PlanError("a ladder needs the rung 1 and at least one other, all above 0: for example 0.25,0.5,1,2")
    if seeds < 2:
        raise PlanError("at least 2 seeds are needed: the noise of one run is measured on repeats")
    shares = sorted(set(rungs), key=lambda share: (share != 1, share))

    def trials(entry: Entry, some: Iterable[float]) -> list[Trial]:
        place = folder / f"{entry.arch}-{fingerprint(entry, dataset, preset)}"
        return [
            Trial(
                entry=entry,
                budget=str(full.times(share)),
                share=share,
                seed=seed,
                folder=place / f"{full.times(share)}-seed-{seed}",
            )
            for share in some
            for seed in range(1, seeds + 1)
        ]

    at_full, others = trials(baseline, shares[:1]), trials(baseline, shares[1:])
    ideas = [] if idea == baseline else trials(idea, [1.0])
    return Plan(baseline=baseline, idea=idea, trials=(*at_full, *others, *ideas))


def fingerprint(entry: Entry, dataset: str, preset: str) -> str:
    """Return a short hash of what an entry's numbers depend on, beside budget and seed."""
    digest = hashlib.sha256(json.dumps([entry.flags, dataset, preset]).encode())
    for file in sorted({*shared_sources(), source(entry.arch)}):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:KEY]


def shared_sources() -> list[Path]:
    """Return the files that change every run: the loop and the data, the contract, and the baseline, which other
    architectures build upon."""
    root = Path(trainer.__file__).parent
    loop = [file for file in root.glob("*.py") if not file.stem.endswith("_command") and file.stem != "cli"]
    return [*loop, *(root / "data").rglob("*.py"), root / "models" / "base.py", source(BASELINE)]


def source(arch: str) -> Path:
    """Return an architecture's file. Raises `UnknownArchitecture`."""
    name = PRESETS[arch][0] if arch in PRESETS else arch
    if name not in ARCHITECTURES:
        raise UnknownArchitectureError(arch)
    spec = importlib.util.find_spec(ARCHITECTURES[name])
    if spec is None or spec.origin is None:
        raise PlanError(f"{arch} has no file: {ARCHITECTURES[name]} is in the dict of trainer/models, but is not there")
    return Path(spec.origin)
