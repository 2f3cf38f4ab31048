"""What this machine lacks for a run is said in one line, before anything is built."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.train import main
from trainer.training import loop


def test_run_without_fabric_prints_one_line(
    train: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    assert train(tmp_path, "--budget", "2steps") == 2
    message = "training needs the package lightning_fabric: pip install 'dailytrain[training]'"
    assert capsys.readouterr().err.splitlines() == [f"dailytrain train: {message}"]


def test_run_larger_than_free_memory_is_refused_before_it_is_built(
    dataset_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loop, "get_free_memory_bytes", lambda: 24 * 10**9)
    monkeypatch.setattr(loop, "build_model_source", lambda *arguments: pytest.fail("the model is built"))
    flags = ["--dataset", str(dataset_folder), "--out", str(tmp_path), "--device", "cpu", "--budget", "2steps"]
    assert main([*flags, "--arch", "rwkv5-7b"]) == 2
    assert "take 116 GB on this machine, with 24 GB of free memory. Name a smaller size" in capsys.readouterr().err
