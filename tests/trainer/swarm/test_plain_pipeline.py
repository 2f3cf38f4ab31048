"""The plain pipeline, two processes over gloo, has the losses of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import plain_pipeline
from tests.support.swarm_chain import build_tiny_config
from trainer.data.dataset import Dataset
from trainer.swarm.comparison import iter_losses
from trainer.swarm.data import Batches


def test_pipeline_losses_equal_single_process(
    dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = Dataset.open(dataset_folder)
    config = build_tiny_config(dataset)
    (tmp_path / "config.json").write_text(config.model_dump_json())
    assert plain_pipeline.main([str(tmp_path / "config.json"), str(dataset_folder), "--steps", "4"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["losses"] == pytest.approx(list(iter_losses(config, Batches(dataset, config), 4)), abs=1e-6)
    assert len(result["seconds"]) == 4


def test_wrong_configuration_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert plain_pipeline.main([str(tmp_path / "config.json"), str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
