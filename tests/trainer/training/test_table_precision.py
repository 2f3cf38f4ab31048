"""The precision of a run, and embeddings in bf16: exact when resumed and replayed, and scored as others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.metrics_lines import lines, numbers
from trainer.checkpoint.files import list_checkpoints
from trainer.checkpoint.graph_weights import load_graph_model
from trainer.checkpoint.store import get_checkpoint_path
from trainer.graph.reading import read_traced
from trainer.scoring.compare_replay import ReplayComparison, compare_weights
from trainer.training import precision
from trainer.training.replay import main as replay

FLAGS = (
    *("--model.depth", "2", "--train.sequence-length", "32", "--train.batch", "4", "--train.micro-batch", "2"),
    *("--train.dev-tokens", "256", "--train.sample-tokens", "4", "--device", "cpu", "--threads", "1"),
    *("--train.precision", "bf16", "--train.muon-precision", "fp32", "--train.compile", "false"),
    *("--checkpoint-every", "4steps", "--keep", "9", "--budget", "12steps"),
)
TABLES = ("--train.table-precision", "bf16")


@pytest.fixture
def train(dataset_folder: Path) -> Callable[..., int]:
    """Return a function that trains graphs of the baseline."""
    from trainer.train import main

    return lambda out, *flags: main(["--dataset", str(dataset_folder), "--out", str(out), *FLAGS, *flags])


@pytest.mark.slow
def test_run_with_tables_in_bf16_learns_and_is_resumed_and_replayed_exactly(
    train: Callable[..., int], dataset_folder: Path, tmp_path: Path
) -> None:
    whole, wide, again = (tmp_path / name for name in ("whole", "wide", "again"))
    assert train(whole, *TABLES) == 0
    assert train(wide) == 0
    losses, others = ([line["loss"] for line in lines(out, "train")] for out in (whole, wide))
    assert losses == pytest.approx(others, rel=3e-3)
    assert losses != others

    first, second, *_ = list_checkpoints(whole)
    weights = load_file(first / "model.safetensors")
    narrow = {name for name, tensor in weights.items() if tensor.dtype == torch.bfloat16}
    assert narrow == {"embedding.weight", "blocks.1.attention.value_embedding.weight"}

    shutil.copytree(first, again / "checkpoints" / first.name)
    for name in ("metrics.jsonl", "run.json"):
        shutil.copyfile(whole / name, again / name)
    shutil.copytree(whole / "graph", again / "graph")
    shutil.copytree(again, tmp_path / "replayed")
    assert train(again, *TABLES) == 0
    assert numbers(again) == numbers(whole)
    (ours, theirs) = (load_file(get_checkpoint_path(out, 12) / "model.safetensors") for out in (again, whole))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())

    recorded = tmp_path / "recorded.json"
    state = json.loads((second / "state.json").read_text())
    recorded.write_text(json.dumps({"clock": state["clock"], "train": state["identity"]["train"]}))
    words = ["--dataset", str(dataset_folder), "--out", str(tmp_path / "replayed"), *FLAGS, *TABLES]
    assert replay(["--until", "8", "--recorded-state", str(recorded), *words]) == 0
    files = (first, second, get_checkpoint_path(tmp_path / "replayed", 8))
    compared = compare_weights(*(folder / "model.safetensors" for folder in files))
    assert compared == ReplayComparison(exact=True, deviation=0.0)

    model = load_graph_model(read_traced(whole / "graph"), get_checkpoint_path(whole, 12))
    table = model.get_parameter("embedding.weight")
    assert table.dtype == torch.float32, "scored in fp32"
    assert torch.equal(table, theirs["embedding.weight"].float())


@pytest.mark.parametrize(("precision", "resolved"), [("fp32", "fp32"), ("bf16", "bf16")])
def test_tables_are_in_bf16_only_beside_products_in_bf16(precision: str, resolved: str, tmp_path: Path) -> None:
    from trainer.config.parsing import parse_config
    from trainer.config.train_config import resolve_config

    config = parse_config(["--out", str(tmp_path), *FLAGS, *TABLES, "--train.precision", precision])
    assert resolve_config(config, "cpu").table_precision == resolved


CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def measured_anew() -> None:
    precision.choose_precision.cache_clear()


@pytest.mark.parametrize(("fp32", "bf16", "chosen"), [(1.0, 3.0, "fp32"), (3.0, 1.0, "bf16"), (1.2, 1.0, "fp32")])
def test_precision_on_cpu_is_bf16_only_if_much_faster(
    fp32: float, bf16: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([fp32, bf16] * precision.REPEATS)
    monkeypatch.setattr(precision, "measure_seconds", lambda work: next(times))
    assert precision.choose_precision(CPU, 1) == chosen
