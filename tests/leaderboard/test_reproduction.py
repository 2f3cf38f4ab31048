"""Files and commands that reproduce a run."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from leaderboard import reproduction
from leaderboard.models import Run
from tests.support import scene
from trainer.config.parsing import parse_config

LEAVES = st.text() | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
TABLES = st.dictionaries(
    st.text(), st.recursive(LEAVES | st.lists(LEAVES), lambda inside: st.dictionaries(st.text(), inside), max_leaves=10)
)


@given(TABLES)
def test_recipe_written_as_toml_round_trips(table: dict[str, Any]) -> None:
    assert tomllib.loads("\n".join(reproduction.write_toml_tables(table))) == table


@pytest.fixture
def run(db: None) -> Run:
    track = scene.create_track(config={"model": {"depth": 4, "windows": "SL"}, "train": {"batch": 8, "compile": False}})
    config = {"model": {"depth": 6, "name": "two words"}, "train": {"evaluations": 7}}
    title = "x\nbudget = 'free'\r\u2028seed = 1"
    return scene.create_run(scene.create_entry(track, title, "smear", config=config), seed=5)


def test_config_file_and_commands_give_the_same_config(client: Client, run: Run, tmp_path: Path) -> None:
    response = client.get(f"/runs/{run.pk}/config.toml")
    assert response["Content-Disposition"] == f'attachment; filename="run-{run.pk}.toml"'
    file = tmp_path / "run.toml"
    file.write_bytes(response.content)

    command = reproduction.write_commands(run).split("dailytrain train", 1)[1].replace("\\\n", " ")
    flags = shlex.split(command, comments=True)
    config = parse_config(flags)
    assert config == parse_config(["--config", str(file), "--out", f"run-{run.pk}"])
    assert (config.model["depth"], config.train.compile, config.seed) == (6, False, 5)
    assert f"git checkout {scene.SHA}" in reproduction.write_commands(run)
    run.entry.config = {"model": {"depth 2 $(id) #": 1}}  # as of an entry from before such names were refused
    assert "'--model.depth 2 $(id) #' 1" in reproduction.write_commands(run)
