"""Runs in W&B with the real package, offline. Skipped where the extra `loggers` is not installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer import protocol
from trainer.data.dataset import Dataset
from trainer.swarm.site_run import SiteRun
from trainer.training.metrics import MetricsWriter

wandb = pytest.importorskip("wandb", reason="W&B is not installed: pip install 'dailytrain[loggers]'")
pytest.importorskip("lightning.pytorch", reason="Lightning is not installed: pip install 'dailytrain[loggers]'")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # of packages that only this logger imports
]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name))
    yield
    wandb.teardown()


def read_records(folder: Path) -> list[Any]:
    """Return the records of the one run in a folder, as `wandb sync` uploads them."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    wandb.finish()
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    store, found = DataStore(), []
    store.open_for_scan(str(file))
    while data := store.scan_data():
        found.append(wandb_internal_pb2.Record())
        found[-1].ParseFromString(data)
    return found


def read_items(items: Any) -> dict[str, Any]:
    return {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}


def read_rows(records: list[Any], prefix: str) -> list[dict[str, Any]]:
    rows = [read_items(record.history.item) for record in records if record.WhichOneof("record_type") == "history"]
    found = [{name: value for name, value in row.items() if name.startswith(prefix)} for row in rows]
    return [row for row in found if row]


def test_coordinator_logs_its_run_as_one_of_a_group(dataset_folder: Path, tmp_path: Path) -> None:
    train_fields, model = {"sequence_length": 16, "batch": 8}, {"depth": 2, "width": 32, "heads": 2}
    config = {"arch": "gpt", "seed": 3, "budget": "20steps", "model": model, "train": train_fields, "logger": "wandb"}
    pin = protocol.DatasetPin(corpus="files:x", tokenizer="bytes", hash="a" * 64)
    order = protocol.SwarmOrder(run=7, dataset=pin, config=config, stages=2, secret="s" * 40)
    out, dataset = tmp_path / "first", Dataset.open(dataset_folder)
    out.mkdir()
    with MetricsWriter(out / "metrics.jsonl", SiteRun(order, out, dataset).build_logger()) as metrics:
        for step, loss in {1: 2.5, 2: 2.25}.items():
            metrics.write("train", step, loss=loss)
    records = read_records(out)
    run = next(record.run for record in records if record.WhichOneof("record_type") == "run")
    described = (run.project, run.display_name, run.run_group, run.job_type)
    assert described == ("dailytrain", "first", "run-7", "swarm")
    logged = read_items(item for record in records for item in (*record.run.config.update, *record.config.update))
    assert (logged["arch"], logged["stages"], logged["steps"], logged["model"]["width"]) == ("gpt", 2, 20, 32)
    assert read_rows(records, "train/") == [{"train/loss": 2.5}, {"train/loss": 2.25}]
