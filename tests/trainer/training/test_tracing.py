"""`dailytrain train` traces its architecture and trains the graphs; later commands read such a run like any other."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.cheats import forged_files
from tests.support import failing_models
from tests.support.metrics_lines import CLOCK, lines
from tests.support.tiny import TINY, TINY_TRACED, TRACED_TRAINING
from trainer.checkpoint.store import get_checkpoint_path
from trainer.cli.main import main
from trainer.graph import trace
from trainer.graph.counting import TrainingCost, count_training_cost
from trainer.graph.model import GraphModel
from trainer.graph.reading import read_traced
from trainer.models import ARCHITECTURES
from trainer.scoring.compare_replay import compare_weights
from trainer.train import main as train
from trainer.training import model_sources, replay
from trainer.training.checkpointing import write_graph_files

pytestmark = pytest.mark.processes

BUDGET = ("--budget", "6steps", "--checkpoint-every", "3steps", "--keep", "9")


@pytest.fixture(scope="module")
def flags(dataset_folder: Path) -> list[str]:
    return ["--dataset", str(dataset_folder), *TINY_TRACED, *BUDGET]


def read_hash(run: Path) -> str | None:
    graph: str | None = json.loads((run / "run.json").read_text())["identity"]["graph"]
    return graph


def test_train_by_default_trains_graphs(traced_run: Path, dataset_folder: Path, tmp_path: Path) -> None:
    assert read_hash(traced_run)
    assert main(["train", "--dataset", str(dataset_folder), *TINY, *BUDGET, "--out", str(tmp_path)]) == 0
    assert read_hash(tmp_path) is None
    without = (*CLOCK, "flops", "mfu")  # a graph's FLOPs have element-wise work, too
    numbers = [
        [{name: value for name, value in row.items() if name not in without} for row in lines(run, "train", "dev")]
        for run in (traced_run, tmp_path)
    ]
    assert numbers[0] == numbers[1]


def copy_first_half(run: Path, out: Path) -> None:
    shutil.copytree(run, out)
    shutil.rmtree(get_checkpoint_path(out, 6))
    (out / "result.json").unlink()


def test_write_graph_files_interrupted_leaves_the_old_file(
    traced_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = read_traced(traced_run / "graph")
    (tmp_path / "init.json").write_text("old")
    monkeypatch.setattr("os.fsync", lambda _: sys.exit("killed"))
    with pytest.raises(SystemExit):
        write_graph_files(traced, tmp_path)
    assert (tmp_path / "init.json").read_text() == "old"
    monkeypatch.undo()
    write_graph_files(traced, tmp_path)
    assert read_traced(tmp_path) == traced


def test_resumed_run_reads_its_graphs_and_counts_them_at_every_micro_batch(
    traced_run: Path, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A smaller card takes smaller micro-batches."""
    counted = []

    def record_rows(model: GraphModel, row_counts: list[int], device: str) -> TrainingCost:
        counted.append(row_counts)
        return count_training_cost(model, row_counts, device)

    run = tmp_path / "run"
    copy_first_half(traced_run, run)
    files = sorted((run / "graph").iterdir())
    before = [(file.stat().st_ino, file.stat().st_mtime_ns) for file in files]
    monkeypatch.setattr(trace, "trace_architecture", None)
    monkeypatch.setattr(model_sources, "count_training_cost", record_rows)
    assert main(["train", *flags, "--out", str(run)]) == 0
    assert counted == [[1, 2, 4]]
    assert lines(run, "train")[-1]["flops"] == lines(traced_run, "train")[-1]["flops"]
    assert [(file.stat().st_ino, file.stat().st_mtime_ns) for file in files] == before, "they are not written again"
    weights = [get_checkpoint_path(out, 6) / "model.safetensors" for out in (traced_run, run)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.slow
def test_resumed_eager_run_stays_eager(
    dataset_folder: Path, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eager = ["train", "--dataset", str(dataset_folder), *TINY, *BUDGET, "--out", str(tmp_path / "run")]
    assert main(eager) == 0
    copy_first_half(tmp_path / "run", tmp_path / "copy")
    assert main(["train", *flags, "--out", str(tmp_path / "copy")]) == 0
    assert "training the Python module (the run began with it)" in capsys.readouterr().err


@pytest.mark.slow
def test_replay_of_traced_run_is_bit_identical(traced_run: Path, flags: list[str], tmp_path: Path) -> None:
    start = get_checkpoint_path(traced_run, 3)
    shutil.copytree(start, tmp_path / "checkpoints" / start.name)
    assert replay.main(["--until", "6", *flags, "--out", str(tmp_path)]) == 0
    ends = [get_checkpoint_path(run, 6) / "model.safetensors" for run in (traced_run, tmp_path)]
    assert compare_weights(start / "model.safetensors", *ends).exact


@pytest.mark.parametrize(
    ("way", "reasons"),
    [
        ("counting", ["failing cannot be traced: ", "a graph is the same for all values", "--eager"]),
        ("random type", ["the buffer table has the type complex128, which a checkpoint cannot hold"]),
    ],
)
def test_untraceable_architecture_fails_with_advice(
    way: str, reasons: list[str], dataset_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "failing", "tests.support.failing_models")
    monkeypatch.setattr(failing_models, "WAY", way)
    given = ["--dataset", str(dataset_folder), "--arch", "failing", "--out", str(tmp_path)]
    assert main(["train", *given, *TRACED_TRAINING, *BUDGET]) == 3
    error = capsys.readouterr().err
    assert all(reason in error for reason in reasons)
    assert way != "counting" or "Traceback" not in error
    assert json.loads((tmp_path / "failure.json").read_text())["cause"] == "model"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--arch", "rwkv5", "--model.width", "64", "--train.chunk", "16"), "train.chunk"),
        (("--train.activation_checkpointing", "true"), "train.activation_checkpointing"),
    ],
)
def test_unsupported_option_trains_the_module(
    options: tuple[str, ...], reason: str, dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--dataset", str(dataset_folder), "--model.depth", "2", *TRACED_TRAINING, *options]
    assert main(["train", *flags, "--budget", "1steps", "--out", str(tmp_path)]) == 0
    assert f"training the Python module ({reason})" in capsys.readouterr().err


@pytest.mark.slow
def test_run_pays_for_its_initialization(
    traced_run: Path, dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def multiply_matrices(append: forged_files.Append) -> None:
        matrix = append("aten::randn", [400, 400])
        for _ in range(5):
            append("aten::mm", matrix, matrix)

    plain_graph, costly_graph = traced_run / "graph", tmp_path / "costly"
    shutil.copytree(plain_graph, costly_graph)
    init = costly_graph / "init.json"
    files = forged_files.edit_initialization(multiply_matrices)({"init.json": init.read_bytes()})
    init.write_bytes(files["init.json"])
    work, states = 5 * 2 * 400**3, []
    for graph in (plain_graph, costly_graph):
        out = tmp_path / f"run-{graph.name}"
        flags = ["--dataset", str(dataset_folder), "--out", str(out), "--graph", str(graph), *TRACED_TRAINING]
        assert train([*flags, "--budget", f"{work + 10**8}flops"]) == 0
        states.append((json.loads((out / "run.json").read_text()), lines(out, "train")[-1]))
    (plain, last), (paid, last_paid) = states
    per_step = plain["flops_per_token"] * 4 * 32
    assert paid["flops_per_token"] == plain["flops_per_token"]
    assert last_paid["flops"] - last_paid["step"] * per_step == pytest.approx(work, rel=0.01)
    assert last["step"] - last_paid["step"] == pytest.approx(work / per_step, abs=2)
    (log, *_) = [line for line in capsys.readouterr().err.splitlines() if "FLOPs a token" in line]
    assert "sequence_length 32" in log
    assert "depth" not in log, "a graph has none"
