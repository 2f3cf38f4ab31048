"""Changes of the architecture's recipe by a run's configuration: the table `[recipe]`, or flags.

    [recipe]
    clip = 1.0
    [recipe.schedule]
    warmdown = 0.5
    [recipe.matrices]         # a group of parameters, by the name that the architecture gave it
    learning_rate = 0.01

`--recipe.matrices.learning-rate 0.01` does the same. The result is in `run.json` and in the run's identity.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from trainer.config.train_config import ConfigError, flatten_table
from trainer.models.base import ParameterGroup, Recipe, Schedule

RecipePart = TypeVar("RecipePart", Recipe, Schedule, ParameterGroup)


def override_recipe(recipe: Recipe, overrides: Mapping[str, Any]) -> Recipe:
    """Return the recipe with these of its fields changed; raise `ConfigError` for an invalid change.

    `overrides` holds tables or dotted names: `{"matrices": {"cautious": True}, "schedule.warmdown": 0.5, "clip": 1}`.
    """
    changes: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in flatten_table(overrides):
        part, _, field = join_words(name).rpartition(".")
        changes[part][field] = value
    top_level = replace_fields("recipe", recipe, changes.pop("", {}), fixed=("groups", "schedule"))
    schedule = replace_fields("recipe.schedule", recipe.schedule, changes.pop("schedule", {}))
    groups = tuple(
        replace_fields(f"recipe.{group.name}", group, changes.pop(join_words(group.name), {}), fixed=("name",))
        for group in recipe.groups
    )
    if changes:
        known = ", ".join(["clip", "l2wrap", "schedule", *(group.name for group in recipe.groups)])
        raise ConfigError(f"there is no recipe.{min(changes)}; this recipe has {known}")
    return dataclasses.replace(top_level, schedule=schedule, groups=groups)


def join_words(name: str) -> str:
    """Return a name as it is written in flags and TOML keys without quotes: `value embeddings` as value_embeddings."""
    return name.replace("-", "_").replace(" ", "_")


def replace_fields(path: str, part: RecipePart, changes: Mapping[str, Any], fixed: tuple[str, ...] = ()) -> RecipePart:
    """Return one part of a recipe with these fields changed; `fixed` ones cannot be changed."""
    hints = {name: hint for name, hint in get_type_hints(type(part)).items() if name not in fixed}
    for name in changes:
        if name not in hints:
            others = ", the table schedule and one of each group" if isinstance(part, Recipe) else ""
            raise ConfigError(f"{path} has no {name!r}; it has {', '.join(sorted(hints))}{others}")
    values = {name: convert_value(f"{path}.{name}", value, hints[name]) for name, value in changes.items()}
    try:
        return dataclasses.replace(part, **values)
    except ValueError as error:
        raise ConfigError(f"recipe: {error}") from error


def convert_value(path: str, value: Any, hint: Any) -> Any:
    """Convert a parsed value to its field's type: integers to floats, lists to tuples."""
    options = get_args(hint)
    if get_origin(hint) is Literal:
        if value in options:
            return value
        raise ConfigError(f"{path} cannot be {value!r}: it is {' or '.join(options)}")
    if NoneType in options:
        return None if value is None else convert_value(path, value, options[0])
    if get_origin(hint) is tuple:
        kinds = options[:1] * len(value) if options[-1] is ... and isinstance(value, list) else options
        if not isinstance(value, list) or len(value) != len(kinds):
            expected = "names" if options[0] is str else f"{len(options)} numbers"
            raise ConfigError(f"{path} cannot be {value!r}: it is a list of {expected}")
        return tuple(convert_value(path, each, kind) for each, kind in zip(value, kinds, strict=True))
    if hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if type(value) is hint and hint is not float:
        return value
    raise ConfigError(f"{path} cannot be {value!r}: it is of type {hint.__name__}")
