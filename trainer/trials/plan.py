"""Plan the trials of ideas: the baseline's ladder, reused by later ideas, and each idea at the full budget.

The folder of each run contains a hash of everything that changes its numbers: the source files of the trainer and of
the architecture, the flags, the dataset. So an edited idea is retrained, but nothing else.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trainer
from trainer.accounting.budget import Budget
from trainer.config.model_config import configure_model, import_architecture
from trainer.config.parsing import parse_config
from trainer.config.recipe_overrides import flatten_table, override_recipe
from trainer.config.train_config import resolve_config
from trainer.errors import ModelError, UserError
from trainer.models import ARCHITECTURES, PRESETS, check_architecture_name
from trainer.text_files import decode_text

BASELINE = "gpt"
RUNGS = (0.25, 0.5, 1.0, 2.0)
BUDGET = "4e12flops"  # half a minute on two cores: the ladder takes some minutes once, an idea about two
SEEDS = 3
FINGERPRINT_DIGITS = 10  # hexadecimal digits of the hash in a folder's name
OPTION_TABLES = ("model.", "recipe.", "train.")
CHECKED_VOCABULARY = 320  # any size will do to check the options of a model
SHARED_PACKAGES = ("accounting", "config", "data", "distributed", "graph", "ops", "optim", "training")


class PlanError(UserError):
    """The trials cannot be planned."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An architecture and the flags of `dailytrain train` that change it."""

    arch: str
    flags: tuple[str, ...] = ()
    title: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        if self.title:
            return self.title
        options = " ".join(flag.removeprefix("--").partition(".")[2].replace("=", " ") for flag in self.flags)
        return f"{self.arch}, {options}" if options else self.arch


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training and its score."""

    entry: Entry
    budget: str
    share: float  # share of the full budget
    seed: int
    folder: Path

    def __str__(self) -> str:
        share = "" if self.share == 1 else f" at {self.share:g} of the budget"
        return f"{self.entry.name}{share}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class TrialPlan:
    baseline: Entry
    title: str
    trials: tuple[Trial, ...]
    """Trials in running order: the full budget first, for an early result, then the other rungs of the ladder."""


def plan_trials(
    baseline: Entry,
    ideas: Sequence[Entry],
    *,
    title: str,
    budget: str,
    rungs: Sequence[float],
    seeds: int,
    dataset: str,
    preset: str,
    folder: Path,
    eager: bool = False,
) -> TrialPlan:
    """Plan the trials of ideas and the baseline. `dataset` is a hash; with `eager` they train Python modules."""
    full = Budget.parse(budget)
    if len(set(rungs)) < 2 or 1.0 not in rungs or min(rungs) <= 0:
        raise PlanError("a ladder needs the rung 1 and at least one other, all above 0: for example 0.25,0.5,1,2")
    if seeds < 2:
        raise PlanError("at least 2 seeds are needed to measure the noise of a run")
    shares = sorted(set(rungs), key=lambda share: (share != 1, share))

    def build(entry: Entry, shares_of_entry: Iterable[float]) -> list[Trial]:
        fingerprint = compute_fingerprint(entry, dataset, preset, eager)
        return build_trials(entry, full, shares_of_entry, seeds, folder / f"{entry.arch}-{fingerprint}")

    if len({baseline, *ideas}) <= len(ideas):
        raise PlanError("two ideas are equal, or one changes nothing")
    for entry in (baseline, *ideas):
        check_options(entry, preset, folder)
    trials = [trial for idea in ideas for trial in build(idea, [1.0])]
    return TrialPlan(baseline=baseline, title=title, trials=(*build(baseline, shares), *trials))


def load_ideas(path: Path) -> tuple[Entry, list[Entry]]:
    """Read a list of settings; return the baseline and the ideas. Raises `PlanError`.

    Each table is an idea by its name, with flags of `dailytrain train` as TOML: `recipe.schedule.final = 0.0`. The
    table with the baseline's name holds what all have.
    """
    try:
        tables = tomllib.loads(decode_text(path.read_bytes()))
    except OSError as error:
        raise PlanError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"{path} is not TOML: {error}") from error
    if strays := [name for name, table in tables.items() if not isinstance(table, dict)]:
        raise PlanError(f"{path}: {strays[0]} must be a table of options, [NAME]")
    common = tables.pop(BASELINE, {})
    if not tables or "arch" in common:
        raise PlanError(f"{path} must have a table [NAME] for each idea, and no arch in [{BASELINE}]")
    return build_entry(BASELINE, common), [build_entry(name, common, table) for name, table in tables.items()]


def build_entry(title: str, *tables: Mapping[str, Any]) -> Entry:
    """Return the entry with the options of the tables, of which later ones count."""
    options = dict(option for table in tables for option in flatten_table(table))
    arch = options.pop("arch", BASELINE)
    values = {
        name: value if isinstance(value, str) else json.dumps(value, default=str) for name, value in options.items()
    }
    if wrong := [name for name in values if not name.startswith(OPTION_TABLES)]:
        raise PlanError(f"[{title}] has {wrong[0]!r}: options are arch, model.NAME, recipe.NAME and train.NAME")
    return Entry(arch=arch, flags=tuple(f"--{name}={values[name]}" for name in sorted(values)), title=title)


def check_options(entry: Entry, preset: str, folder: Path) -> None:
    """Raise `PlanError` if an option does not exist or has an impossible value."""
    find_source(entry.arch)
    try:
        config = parse_config(["--preset", preset, "--out", str(folder), "--arch", entry.arch, *entry.flags])
        module = import_architecture(entry.arch)
        model = configure_model(module, config, resolve_config(config, "cpu"), 0, CHECKED_VOCABULARY)
        override_recipe(module.recipe(model), config.recipe)
    except (UserError, ModelError) as error:
        raise PlanError(f"{entry.name}: {error}") from error


def build_trials(entry: Entry, full: Budget, shares: Iterable[float], seeds: int, folder: Path) -> list[Trial]:
    """Return the trials of an entry at shares of the full budget, with seeds 1 to `seeds`, in folders of `folder`."""
    return [
        Trial(
            entry=entry,
            budget=str(full.times(share)),
            share=share,
            seed=seed,
            folder=folder / f"{full.times(share)}-seed-{seed}",
        )
        for share in shares
        for seed in range(1, seeds + 1)
    ]


def compute_fingerprint(entry: Entry, dataset: str, preset: str, eager: bool) -> str:
    """Return a short hash of what an entry's numbers depend on, except budget and seed."""
    digest = hashlib.sha256(json.dumps([entry.flags, dataset, preset, eager]).encode())
    for file in sorted({*list_shared_sources(), find_source(entry.arch)}):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:FINGERPRINT_DIGITS]


def list_shared_sources() -> list[Path]:
    """Return the files that change every run: training, data, the contract of models, and the baseline, which other
    architectures extend."""
    root = Path(trainer.__file__).parent
    files = [file for package in SHARED_PACKAGES for file in (root / package).rglob("*.py")]
    models = [root / "models" / name for name in ("base.py", "ngram_memory.py")]
    return [*files, root / "train.py", *models, find_source(BASELINE)]


def find_source(arch: str) -> Path:
    """Return an architecture's file. Raises `UnknownArchitectureError`."""
    check_architecture_name(arch)
    name = PRESETS[arch][0] if arch in PRESETS else arch
    spec = importlib.util.find_spec(ARCHITECTURES[name])
    if spec is None or spec.origin is None:
        raise PlanError(f"{arch} has no file: {ARCHITECTURES[name]} is listed in trainer/models, but does not exist")
    return Path(spec.origin)
