"""`dailytrain trace` and `dailytrain graph`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import failing_models
from trainer.cli.main import main
from trainer.models import ARCHITECTURES
from trainer.protocol import GRAPH_FILES

SIZE = ("--depth", "1", "--sequence-length", "16", "--vocabulary-size", "64")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("traced")
    assert main(["trace", "nanogpt", "--out", str(out), *SIZE]) == 0
    return out


def test_trace_writes_four_files(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(GRAPH_FILES)


def test_graph_prints_costs_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", str(folder), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["sequence_length"] == 16
    assert content["parameters"] > 0
    assert content["flops_per_token"] > content["scoring_flops_per_token"] > 0
    assert {"aten::mm", "aten::addmm"} <= {row["name"] for row in content["operators"]}


def test_graph_prints_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "FLOPs a token, forward and backward" in printed
    assert "blocks.0.up" in printed


def test_graph_draws_its_modules(folder: Path, tmp_path: Path) -> None:
    assert main(["graph", str(folder), "--drawing", str(tmp_path / "modules.svg"), "--json"]) == 0
    assert "blocks" in (tmp_path / "modules.svg").read_text()


def test_field_of_config_can_be_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["trace", "nanogpt", "--out", str(tmp_path), *SIZE, "--set", "width=32", "--set", "heads=2", "--json"])
        == 0
    )
    capsys.readouterr()
    recipe = json.loads((tmp_path / "recipe.json").read_text())
    assert (recipe["model"]["width"], recipe["model"]["heads"]) == (32, 2)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--set", "width"], "--set takes NAME=VALUE, not 'width'"),
        (["--set", "colour=1"], "unexpected keyword argument 'colour'"),
        (["--set", "heads=5"], "a multiple of heads"),
    ],
)
def test_invalid_field_is_one_line(
    flags: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "nanogpt", "--out", str(tmp_path), *SIZE, *flags]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(("way", "reason"), [("counting", "a graph is the same for all values"), ("building", "width")])
def test_architecture_that_cannot_be_traced_is_one_line(
    way: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "failing", "tests.support.failing_models")
    monkeypatch.setattr(failing_models, "WAY", way)
    assert main(["trace", "failing", "--out", str(tmp_path), *SIZE]) == 3
    *_, last_line = capsys.readouterr().err.splitlines()  # torch writes of its own before
    assert last_line.startswith("dailytrain trace: ")
    assert reason in last_line


def test_module_that_cannot_be_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "failing", "tests.support.no_such_module")
    assert main(["trace", "failing", "--out", str(tmp_path), *SIZE]) == 3
    assert "while the architecture failing was imported" in capsys.readouterr().err


def test_drawing_in_a_missing_folder_is_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["graph", str(folder), "--drawing", str(tmp_path / "nowhere" / "modules.svg")]) == 2
    assert "--drawing: there is no folder" in capsys.readouterr().err


def test_folder_without_graph_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", str(tmp_path)]) == 2
    assert "init.json is missing" in capsys.readouterr().err
