"""Runs in W&B with the real package, over a socket and offline. Skipped where the extra `loggers` is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.interrupted_runs import train
from tests.trainer.training.wandb_server import API_KEY, StoredRun, WandbServer, serve_wandb
from trainer import protocol
from trainer.data.dataset import Dataset
from trainer.errors import ExitCode
from trainer.swarm.site_run import SiteRun
from trainer.training.metrics import MetricsWriter

wandb = pytest.importorskip("wandb", reason="W&B is not installed: pip install 'dailytrain[loggers]'")
pytest.importorskip("lightning.pytorch", reason="Lightning is not installed: pip install 'dailytrain[loggers]'")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
]  # of packages that only this logger imports

MODEL = {"depth": 2, "width": 32, "heads": 2}
ROWS = {1: 2.5, 2: 2.25}
"""Steps and losses that a coordinator logs."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    monkeypatch.setenv("WANDB_API_KEY", API_KEY)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    with serve_wandb() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        yield server
        wandb.teardown()


def run_coordinator(dataset: Dataset, out: Path) -> None:
    """Log as a site's coordinator of run 7 does, until its end."""
    train_fields = {"sequence_length": 16, "batch": 8}
    config = {"arch": "gpt", "seed": 3, "budget": "20steps", "model": MODEL, "train": train_fields, "logger": "wandb"}
    pin = protocol.DatasetPin(corpus="files:x", tokenizer="bytes", hash="a" * 64)
    order = protocol.SwarmOrder(run=7, dataset=pin, config=config, stages=2, secret="s" * 40)
    out.mkdir()
    with MetricsWriter(out / "metrics.jsonl", SiteRun(order, out, dataset).build_logger()) as metrics:
        for step, loss in ROWS.items():
            metrics.write("train", step, loss=loss)
    wandb.finish()


def read_rows(run: StoredRun, prefix: str) -> dict[int, dict[str, Any]]:
    """Return the values below a prefix by step."""
    rows: dict[int, dict[str, Any]] = {}
    for row in run.history:
        values = {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}
        if values:
            rows.setdefault(row["trainer/global_step"], {}).update(values)
    return rows


def read_lines(folder: Path, kind: str) -> dict[int, dict[str, Any]]:
    """Return the numbers of the lines of that kind in `metrics.jsonl`, by step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        line["step"]: {name: value for name, value in line.items() if name != "step" and isinstance(value, int | float)}
        for line in lines
        if line["kind"] == kind
    }


def test_coordinators_of_a_run_reach_the_server_as_a_group(
    dataset_folder: Path, tmp_path: Path, server: WandbServer
) -> None:
    dataset = Dataset.open(dataset_folder)
    for name in ("first", "second"):
        run_coordinator(dataset, tmp_path / name)
    assert [run.display_name for run in server.runs.values()] == ["first", "second"]
    for run in server.runs.values():
        assert (run.project, run.group, run.job_type, run.exit_code) == ("dailytrain", "run-7", "swarm", 0)
        assert (run.config["arch"], run.config["stages"], run.config["steps"]) == ("gpt", 2, 20)
        assert run.config["model"]["width"] == 32
        assert read_rows(run, "train/") == {step: {"loss": loss} for step, loss in ROWS.items()}
        assert json.loads(run.files["wandb-summary.json"])["train/loss"] == 2.25
    assert server.errors == []


def test_training_run_reaches_the_server_with_all_metrics(
    dataset_folder: Path, tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_RUN_GROUP", "seeds")
    out = tmp_path / "run"
    flags = ("--dataset", dataset_folder, "--budget", "4steps", "--train.evaluations", "1", "--logger", "wandb")
    assert train(out, *flags) == ExitCode.OK
    wandb.finish()
    (run,) = server.runs.values()
    assert (run.display_name, run.group, run.job_type, run.exit_code) == ("run", "seeds", "train", 0)
    assert run.config == json.loads((out / "run.json").read_text())["identity"]
    for kind in ("train", "dev"):
        lines = read_lines(out, kind)
        assert lines
        assert read_rows(run, f"{kind}/") == lines
    assert server.errors == []


def test_coordinator_offline_reaches_the_server_by_wandb_sync(
    dataset_folder: Path, tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run_coordinator(Dataset.open(dataset_folder), tmp_path / "run")
    assert not server.runs
    (folder,) = (tmp_path / "run").glob("wandb/offline-run-*")
    monkeypatch.setenv("WANDB_MODE", "online")
    subprocess.run([sys.executable, "-m", "wandb", "sync", folder], check=True, cwd=tmp_path, capture_output=True)
    (run,) = server.runs.values()
    assert (run.group, run.job_type, run.exit_code) == ("run-7", "swarm", 0)
    assert read_rows(run, "train/") == {step: {"loss": loss} for step, loss in ROWS.items()}
    assert server.errors == []
