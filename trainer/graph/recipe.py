"""The recipe of a traced architecture as plain data: `recipe.json`."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainer.errors import to_one_line
from trainer.graph.files import TracedArchitecture
from trainer.graph.schema import GraphError
from trainer.models.base import ArchitectureConfig, ParameterGroup, Recipe, Schedule

MAX_PATTERNS = 500  # each is compared with the name of each parameter


def describe_recipe(recipe: Recipe, config: ArchitectureConfig) -> dict[str, Any]:
    """Return the recipe and the sizes as plain data."""
    return {
        "vocabulary_size": config.vocabulary_size,
        "sequence_length": config.sequence_length,
        "model": dataclasses.asdict(config),  # type: ignore[call-overload]
        "recipe": dataclasses.asdict(recipe),
    }


def read_recipe(traced: TracedArchitecture) -> Recipe:
    """Return the recipe of a traced architecture. Raises `GraphError`."""
    try:
        table = dict(traced.recipe["recipe"])
        groups = [
            ParameterGroup(**{**group, "match": tuple(group["match"]), "betas": tuple(group["betas"])})
            for group in table["groups"]
        ]
        if sum(len(group.match) for group in groups) > MAX_PATTERNS:
            raise ValueError(f"its groups have more than {MAX_PATTERNS} patterns of names")
        return Recipe(**{**table, "groups": tuple(groups), "schedule": Schedule(**table["schedule"])})
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise GraphError(f"recipe.json is not a recipe: {to_one_line(error)}") from error
