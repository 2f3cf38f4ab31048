"""Read and check the file that describes a sweep.

    budget = "4e12flops"            # of a full run
    rungs = [0.25, 0.5, 1, 2]       # of the baseline's ladder, as shares of the budget
    seeds = 3
    search = "halving"              # or "random"; needs [space]
    trials = 16                     # configurations to draw
    extends = "other.toml"          # start from this file; its tables are merged with those here

    [base]                          # of the baseline and of all entries
    model.depth = 4

    [ablations."final rate 5 %"]    # an entry of its own, at the full budget
    recipe.schedule.final = 0.05

    [space]
    recipe.matrices.learning_rate = { low = 0.005, high = 0.05, log = true }
    model.windows = { values = ["L", "SL"] }

Options are those of `dailytrain train` in the tables `model`, `recipe` and `train`, and `arch`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from trainer.accounting.budget import Budget, BudgetError
from trainer.config.recipe_overrides import flatten_table
from trainer.errors import UserError
from trainer.models import check_architecture_name
from trainer.text_files import decode_text
from trainer.trials.plan import BASELINE, BUDGET, RUNGS, SEEDS, Entry

DRAW = "draw "
"""Begins the names of the entries of a search."""
OPTION_TABLES = ("model.", "recipe.", "train.")
Search = Literal["random", "halving"]
Text = Literal["test", "dev"]
Options = Mapping[str, Any]
"""Values of options by their dotted names, such as `recipe.schedule.final`."""


class SweepError(UserError):
    """The file of a sweep is invalid, or its folder belongs to another one."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values or any(not isinstance(value, bool | int | float | str) for value in self.values):
            raise ValueError("values must be numbers, words, true or false")


@dataclass(frozen=True, kw_only=True)
class Range:
    """A number from `low` to `high`, whole if both are; drawn evenly from their logarithms with `log`."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if any(not is_number(bound) for bound in (self.low, self.high)) or type(self.log) is not bool:
            raise ValueError("low and high must be numbers, and log true or false")
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError("low must be below high, and above 0 with log")


@dataclass(frozen=True, kw_only=True)
class SweepSpace:
    """The runs of a sweep."""

    budget: str = BUDGET
    """Of a full run, in FLOPs, tokens, steps or seconds."""
    rungs: tuple[float, ...] = RUNGS
    """Of the baseline's ladder, as shares of the budget."""
    seeds: int = SEEDS
    """Of each run at the full budget and of the ladder. A search draws with seed 1 below the full budget."""
    seed: int = 1
    """Of the draws of a search."""
    search: Search | None = None
    trials: int = 16
    """Configurations that a search draws."""
    levels: int = 3
    """Budgets of a halving search: the full one, and each a `factor` smaller than the next."""
    factor: int = 2
    """One in so many configurations reaches the next level of a halving search."""
    score: Text = "test"
    """What gives a run its bits per byte: `dailytrain score` on test, or the last evaluation on dev, which is cheaper
    and reads `train.dev_tokens` tokens."""
    base: Options = field(default_factory=dict)
    ablations: Mapping[str, Options] = field(default_factory=dict)
    space: Mapping[str, Choice | Range] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Budget.parse(self.budget)
        if len(set(self.rungs)) < 2 or 1.0 not in self.rungs or min(self.rungs) <= 0:
            raise ValueError("rungs must be 1 and at least one other share above 0, for example [0.25, 0.5, 1, 2]")
        for name, minimum in {"seeds": 2, "trials": 2, "levels": 2, "factor": 2, "seed": 0}.items():
            if type(value := getattr(self, name)) is not int or value < minimum:
                raise ValueError(f"{name} must be a whole number of at least {minimum}, not {value!r}")
        if self.search is not None and self.search not in get_args(Search):
            raise ValueError(f"search is {' or '.join(get_args(Search))}, not {self.search!r}")
        if self.score not in get_args(Text):
            raise ValueError(f"score is {' or '.join(get_args(Text))}, not {self.score!r}")
        if (self.search is None) == bool(self.space):
            raise ValueError("search and [space] need each other")
        if not self.ablations and not self.space:
            raise ValueError("there is nothing to run: it has neither [ablations.NAME] nor [space]")

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of the budget at which a search runs its configurations, smallest first."""
        return tuple(
            float(self.factor) ** -level for level in reversed(range(self.levels if self.search == "halving" else 1))
        )

    def build_entry(self, options: Options) -> Entry:
        """Return the entry with these options over those of [base]."""
        merged = {**self.base, **options}
        arch = merged.pop("arch", BASELINE)
        return Entry(arch=arch, flags=tuple(f"--{name}={format_value(merged[name])}" for name in sorted(merged)))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def format_value(value: Any) -> str:
    """Return a value as `dailytrain train` reads it from a flag."""
    if isinstance(value, str):
        return value
    return json.dumps(value)


def load_space(path: Path) -> SweepSpace:
    """Read the file of a sweep. Raises `SweepError` with one line."""
    content = read_table(path)
    if isinstance(parent := content.pop("extends", None), str):
        base = read_table(path.parent / parent)
        if "extends" in base:
            raise SweepError(f"{path} extends {parent}, which extends another file: name that one")
        content = merge_tables(base, content)
    elif parent is not None:
        raise SweepError(f"{path}: extends must be the name of a file, not {parent!r}")
    try:
        return parse_space(content)
    except (ValueError, TypeError, BudgetError, SweepError) as error:
        raise SweepError(f"{path}: {error}") from error


def read_table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(decode_text(path.read_bytes()))
    except OSError as error:
        raise SweepError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise SweepError(f"{path} is not TOML: {error}") from error


def merge_tables(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `changes` into `base`, nested tables too."""
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = merge_tables(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def parse_space(content: Mapping[str, Any]) -> SweepSpace:
    """Raises `SweepError` or ValueError."""
    known = {each.name for each in dataclasses.fields(SweepSpace)}
    if unknown := sorted(set(content) - known):
        raise SweepError(f"there is no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")
    settings = dict(content)
    if "rungs" in settings:
        settings["rungs"] = parse_rungs(settings["rungs"])
    for table in {"base", "ablations", "space"} & set(settings):
        if not isinstance(settings[table], dict):
            raise SweepError(f"[{table}] must be a table")
    ablations = settings.pop("ablations", {})
    for name, options in ablations.items():
        if not isinstance(options, dict) or not options:
            raise SweepError(f"[ablations.{name}] must be a table of options")
        if name == BASELINE or name.startswith(DRAW):
            raise SweepError(f"an ablation cannot be called {name}: that is the name of another entry")
    return SweepSpace(
        **{name: value for name, value in settings.items() if name not in ("base", "space")},
        base=parse_options("base", settings.get("base", {})),
        ablations={name: parse_options(f"ablations.{name}", options) for name, options in ablations.items()},
        space={name: parse_domain(name, value) for name, value in flatten_domains(settings.get("space", {})).items()},
    )


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def parse_rungs(rungs: Any) -> tuple[float, ...]:
    if not isinstance(rungs, list) or not all(map(is_number, rungs)):
        raise SweepError(f"rungs must be a list of numbers, not {rungs!r}")
    return tuple(float(share) for share in rungs)


def parse_options(table: str, content: Mapping[str, Any]) -> Options:
    options = dict(flatten_table(content))
    for name, value in options.items():
        check_option_name(table, name)
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, bool | str) or is_number(part) for part in parts):
            raise SweepError(f"[{table}] {name} must be a number, a word, true, false or a list of these, not {value}")
    if "arch" in options:
        if table == "base":
            raise SweepError(f"[base] cannot set arch: the baseline is {BASELINE}")
        check_architecture_name(str(options["arch"]))
    return options


def check_option_name(table: str, name: str) -> None:
    if name != "arch" and not name.startswith(OPTION_TABLES):
        raise SweepError(f"[{table}] has {name!r}: options are arch, model.NAME, recipe.NAME and train.NAME")


def flatten_domains(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted names with the tables `{values}` or `{low, high}` that stand under them."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping) and not {"values", "low", "high"} & set(value):
            found |= flatten_domains(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def parse_domain(name: str, content: Any) -> Choice | Range:
    check_option_name("space", name)
    if isinstance(content, Mapping):
        try:
            if set(content) == {"values"} and isinstance(content["values"], list):
                return Choice(values=tuple(content["values"]))
            if {"low", "high"} <= set(content) <= {"low", "high", "log"}:
                return Range(**content)
        except ValueError as error:
            raise SweepError(f"[space] {name}: {error}") from error
    raise SweepError(f"[space] {name} must be {{values = [...]}} or {{low = ..., high = ..., log = true}}")
