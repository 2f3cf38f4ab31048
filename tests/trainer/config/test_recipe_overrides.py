"""A configuration may change fields of an architecture's recipe; an error is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.config.parsing import parse_config
from trainer.config.recipe_overrides import override_recipe
from trainer.config.train_config import ConfigError
from trainer.models.base import ParameterGroup, Recipe, Schedule

RECIPE = Recipe(
    groups=(
        ParameterGroup("embedding", ("embedding.*",), "adamw", learning_rate=0.1),
        ParameterGroup("matrices", ("*",), "muon", learning_rate=0.01),
    ),
    schedule=Schedule(warmup=0.1, warmdown=0.6),
)


def test_empty_overrides_change_nothing() -> None:
    assert override_recipe(RECIPE, {}) == RECIPE


def test_overrides_change_only_given_fields() -> None:
    changed = override_recipe(
        RECIPE,
        {
            "clip": 1,
            "schedule": {"warmdown": 0.5, "shape": "cosine"},
            "matrices": {"learning_rate": 1, "cautious": True},
            "embedding": {"betas": [0.8, 0.9], "match": ["embedding.*", "head.*"]},
        },
    )
    assert changed.clip == 1.0
    assert changed.schedule == Schedule(warmup=0.1, warmdown=0.5, shape="cosine")
    embedding, matrices = changed.groups
    assert matrices == ParameterGroup("matrices", ("*",), "muon", learning_rate=1.0, cautious=True)
    assert (embedding.betas, embedding.match) == ((0.8, 0.9), ("embedding.*", "head.*"))


def test_flag_overrides_table(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[recipe]\nclip = 2.0\n[recipe.schedule]\nwarmdown = 0.3\n[recipe.matrices]\nmomentum = 0.9\n")
    flags = ["--recipe.schedule.warmdown", "0.4", "--recipe.matrices.learning-rate=0.5"]
    changed = override_recipe(RECIPE, parse_config(["--out", "x", "--config", str(file), *flags]).recipe)
    assert changed.clip == 2.0
    assert changed.schedule.warmdown == 0.4
    assert (changed.groups[1].momentum, changed.groups[1].learning_rate) == (0.9, 0.5)


def test_dependent_overrides_work_in_any_order() -> None:
    for table in ({"warmup": 0.5, "warmdown": 0.5}, {"warmdown": 0.5, "warmup": 0.5}):
        assert override_recipe(RECIPE, {"schedule": table}).schedule == Schedule(0.5, 0.5)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            {"matrix": {"learning_rate": 1.0}},
            "there is no recipe.matrix; this recipe has clip, l2wrap, schedule, embed",
        ),
        (
            {"clop": 1.0},
            "recipe has no 'clop'; it has clip, l2wrap, the t",
        ),
        ({"schedule.warm": 1.0}, "recipe.schedule has no 'warm'; it has final, "),
        ({"matrices": {"lr": 1.0}}, "recipe.matrices has no 'lr'; it has betas"),
        ({"matrices": {"name": "x"}}, "recipe.matrices has no 'name'"),
        ({"matrices": 5}, "recipe has no 'matrices'"),
        (
            {"matrices": {"learning_rate": "fast"}},
            "recipe.matrices.learning_rate cannot be 'fast': it is of type float",
        ),
        ({"matrices": {"learning_rate": True}}, "cannot be True"),
        ({"matrices": {"learning_rate": float("nan")}}, "cannot be nan"),
        ({"matrices": {"learning_rate": -1}}, "matrices.learning_rate cannot be -1"),
        ({"matrices": {"cautious": 1}}, "recipe.matrices.cautious cannot be 1: it is of type bool"),
        ({"matrices": {"optimizer": "sgd"}}, "cannot be 'sgd': it is muon or adamw or adamw8bit"),
        ({"embedding": {"normalized": True}}, "embedding.normalized is for muon"),
        ({"embedding": {"betas": 0.9}}, "cannot be 0.9: it is a list of 2 numbers"),
        ({"embedding": {"betas": [0.9, 1.0]}}, "embedding.betas must be at least 0 and below 1, not 1.0"),
        ({"embedding": {"match": "embedding.*"}}, "it is a list of names"),
        ({"schedule": {"shape": "triangle"}}, "it is trapezoid or cosine"),
        ({"schedule": {"warmdown": 0.95}}, "must fit into the budget"),
        ({"clip": 0}, "clip must be above 0"),
    ],
)
def test_invalid_override_raises_one_line_error(overrides: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        override_recipe(RECIPE, overrides)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_run_records_overrides_in_identity(
    train: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--budget", "4steps", "--recipe.clip", "0.01", "--recipe.schedule.shape", "cosine")
    assert train(tmp_path, *flags, "--recipe.matrices.momentum", "0.87") == 0
    recipe = json.loads((tmp_path / "run.json").read_text())["recipe"]
    assert (recipe["clip"], recipe["schedule"]["shape"]) == (0.01, "cosine")
    assert [group["momentum"] for group in recipe["groups"] if group["name"] == "matrices"] == [0.87]
    assert train(tmp_path, *flags) == 2
    assert "another recipe" in capsys.readouterr().err.splitlines()[-1]
    assert train(tmp_path / "other", "--budget", "4steps", "--recipe.heads.momentum", "0.5") == 2
    assert "there is no recipe.heads" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", ["value embeddings", "value_embeddings", "value-embeddings"])
def test_group_of_two_words_has_a_name_without_spaces(name: str) -> None:
    recipe = Recipe((ParameterGroup("value embeddings", ("*",), "adamw", learning_rate=0.1),))
    assert override_recipe(recipe, {f"{name}.learning_rate": 0.2}).groups[0].learning_rate == 0.2
