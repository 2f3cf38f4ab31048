"""Run a sweep: the baseline's ladder, ablations and a search, all as trials that are trained once and kept.

A halving search runs all configurations at its smallest budget with one seed, and the best of each level at the next
(Jamieson and Talwalkar, arXiv 1502.07943). Every run is annealed to its own budget, because learning rates flip
rankings in the middle of a schedule.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.accounting.budget import Budget
from trainer.checkpoint.json_files import atomic_write_json
from trainer.config.parsing import parse_config
from trainer.config.recipe_overrides import override_recipe
from trainer.config.resolve import resolve_config
from trainer.errors import ModelError, UserError
from trainer.scoring.multiplier import Axis, ResultsError, TrackComparison, compare_entries, parse_results
from trainer.training.model_sources import configure_model, import_architecture
from trainer.trials.plan import BASELINE, Entry, Trial, build_trials, compute_fingerprint
from trainer.trials.sweep_draws import Draws
from trainer.trials.sweep_space import DRAW, SweepError, SweepSpace
from trainer.trials.trial_runner import TrialRunner

RESULTS, JOURNAL, RUNS = "sweep.json", "draws.journal", "runs"
EXTENDABLE = ("rungs", "seeds", "ablations")
"""Fields of a space that may change between two calls, which then run what is missing."""
CHECKED_VOCABULARY = 320  # any size will do to check the options of a model

Report = Callable[["SweepRun", Mapping[str, Any], int, int], None]
"""Called with each run, its row, and the numbers of finished and of planned runs of the current level."""


@dataclass(frozen=True)
class SweepRun:
    """One training: an entry by its name in the table, and the trial."""

    name: str
    trial: Trial


@dataclass
class Sweep:
    """A sweep in its folder. `dataset` is the hash of the text that all runs train on."""

    space: SweepSpace
    folder: Path
    dataset: str
    preset: str
    runner: TrialRunner
    entries: dict[str, Entry] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """A row for each finished run, as `dailytrain multiplier` reads them, with `arch`, `options`, `share`, and `failed`
    with the reason for a model that could not be trained."""

    def run(self, report: Report) -> None:
        """Run what is not finished, and write `sweep.json` after each run. Raises `SweepError`, `TrialError`."""
        self.check_folder()
        space = self.space
        baseline = space.build_entry({})
        ablations = {name: space.build_entry(options) for name, options in space.ablations.items()}
        if len({baseline, *ablations.values()}) <= len(ablations):
            raise SweepError("two ablations are equal, or one changes nothing")
        draws = Draws(space, self.folder / JOURNAL) if space.search else None
        drawn = [space.build_entry(options) for options in draws.draw()] if draws else []
        # Equal draws are one entry, and so are those that equal the baseline or an ablation.
        names = {entry: name for name, entry in ablations.items()} | {baseline: BASELINE}
        candidates = list(dict.fromkeys(entry for entry in drawn if entry not in names))
        names |= {entry: f"{DRAW}{drawn.index(entry)}" for entry in candidates}
        self.entries = {name: entry for entry, name in names.items()}
        for name, entry in self.entries.items():
            self.check_entry(name, entry)
        shares = sorted(set(space.rungs), key=lambda share: (share != 1, share))
        first = [run for entry in ablations.values() for run in self.plan(entry, names, [1.0])]
        self.run_level(
            [*self.plan(baseline, names, shares), *first, *self.plan_level(candidates, names, space.shares[0])], report
        )
        for share in space.shares[1:]:
            candidates = self.select_best(candidates, names)
            self.run_level(self.plan_level(candidates, names, share), report)
        if draws:
            for number, entry in enumerate(drawn):
                draws.save_result(number, self.find_loss(names[entry]))

    def check_folder(self) -> None:
        """Raise `SweepError` if the folder holds a sweep of another space or text.

        Rungs, seeds and ablations may change: their runs are kept apart.
        """
        space = {name: value for name, value in self.space.to_dict().items() if name not in EXTENDABLE}
        identity = json.loads(json.dumps({"space": space, "dataset": self.dataset}))
        file = self.folder / "space.json"
        if file.is_file() and json.loads(file.read_text()) != identity:
            raise SweepError(f"{self.folder} holds a sweep of another space or text: choose another --out")
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write_json(file, identity)

    def check_entry(self, name: str, entry: Entry) -> None:
        """Raise `SweepError` if an option does not exist or has an impossible value."""
        flags = ["--preset", self.preset, "--out", str(self.folder), "--arch", entry.arch, *entry.flags]
        try:
            config = parse_config(flags)
            module = import_architecture(entry.arch)
            model = configure_model(module, config, resolve_config(config, "cpu"), 0, CHECKED_VOCABULARY)
            override_recipe(module.recipe(model), config.recipe)
        except (UserError, ModelError) as error:
            raise SweepError(f"{name} ({entry.name}): {error}") from error

    def plan_level(self, entries: Sequence[Entry], names: Mapping[Entry, str], share: float) -> list[SweepRun]:
        return [run for entry in entries for run in self.plan(entry, names, [share])]

    def plan(self, entry: Entry, names: Mapping[Entry, str], shares: Sequence[float]) -> list[SweepRun]:
        """Return an entry's runs; one seed below the full budget, except on the baseline's ladder."""
        seeds = self.space.seeds if names[entry] == BASELINE or shares == [1.0] else 1
        folder = self.folder / RUNS / f"{entry.arch}-{compute_fingerprint(entry, self.dataset, self.preset, False)}"
        trials = build_trials(entry, Budget.parse(self.space.budget), shares, seeds, folder)
        return [SweepRun(names[entry], trial) for trial in trials]

    def run_level(self, runs: Sequence[SweepRun], report: Report) -> None:
        by_folder = {run.trial.folder: run for run in runs}
        trials = [run.trial for run in runs]
        for done, (trial, record) in enumerate(self.runner.run_trials(trials), start=1):
            run = by_folder[trial.folder]
            row = {
                **record,
                "entry": run.name,
                "seed": trial.seed,
                "arch": trial.entry.arch,
                "options": [flag.removeprefix("--") for flag in trial.entry.flags],
                "share": trial.share,
            }
            self.rows.append(row)
            atomic_write_json(self.folder / RESULTS, self.to_dict(None))
            report(run, row, done, len(runs))

    def select_best(self, entries: Sequence[Entry], names: Mapping[Entry, str]) -> list[Entry]:
        """Return one in `factor` of the entries, at least one, with the lowest loss at their largest share."""
        losses = {entry: loss for entry in entries if (loss := self.find_loss(names[entry])) is not None}
        return sorted(losses, key=lambda entry: losses[entry])[: math.ceil(len(entries) / self.space.factor)]

    def find_loss(self, name: str) -> float | None:
        """Return an entry's mean bits per byte at its largest share of at most 1; None if it failed or has no run."""
        rows = [row for row in self.rows if row["entry"] == name and row["share"] <= 1]
        largest = max((row["share"] for row in rows), default=0.0)
        losses = [row.get("bits_per_byte") for row in rows if row["share"] == largest]
        return sum(losses) / len(losses) if losses and None not in losses else None

    def compare(self, axis: Axis) -> TrackComparison:
        """Compare all entries with the baseline's ladder at the full budget. Raises `ResultsError`."""
        rows = [row for row in self.rows if "failed" not in row]
        full = [row[axis] for row in rows if row["entry"] == BASELINE and row["share"] == 1 and row[axis]]
        if not full:
            raise ResultsError("No run of the baseline at the full budget has finished.")
        return compare_entries(parse_results(rows), BASELINE, axis, sum(full) / len(full))

    def to_dict(self, comparison: TrackComparison | None) -> dict[str, Any]:
        """Return the content of `sweep.json`: `runs` now, and what is read off them at the end."""
        options: dict[str, Any] = defaultdict(dict)
        for row in self.rows:
            options[row["entry"]] = {"arch": row["arch"], "options": row["options"]}
        content = {"space": self.space.to_dict(), "dataset": self.dataset, "runs": sort_rows(self.rows)}
        if comparison is None:
            return content
        compared = comparison.to_dict()
        rows = [{**row, **options[row["entry"]]} for row in compared["entries"]]
        return {**content, "axis": comparison.axis, "entries": rows, "ladder": compared["ladder"]}

    def save(self, comparison: TrackComparison) -> None:
        atomic_write_json(self.folder / RESULTS, self.to_dict(comparison))


def sort_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in an order that does not depend on which run ended first."""
    return sorted(rows, key=lambda row: (row["entry"], row["share"], row["seed"]))
