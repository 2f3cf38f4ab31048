"""`dailytrain trace` and `dailytrain graph`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.cli.main import main
from trainer.protocol import GRAPH_FILES

SIZE = ("--depth", "1", "--sequence-length", "16", "--vocabulary-size", "64")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("traced")
    assert main(["trace", "nanogpt", "--out", str(out), *SIZE, "--set", "width=32", "--set", "heads=2", "--json"]) == 0
    return out


def test_graph_prints_costs_and_draws_modules(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(GRAPH_FILES)
    recipe = json.loads((folder / "recipe.json").read_text())
    assert (recipe["model"]["width"], recipe["model"]["heads"]) == (32, 2)
    assert main(["graph", str(folder), "--drawing", str(tmp_path / "modules.svg"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["sequence_length"] == 16
    assert content["parameters"] > 0
    assert content["flops_per_token"] > content["scoring_flops_per_token"] > 0
    assert {"aten::mm", "aten::addmm"} <= {row["name"] for row in content["operators"]}
    assert "blocks" in (tmp_path / "modules.svg").read_text()
    assert main(["graph", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "FLOPs a token, forward and backward" in printed
    assert "blocks.0.up" in printed
