"""`dailytrain train` traces its architecture and trains the graphs; later commands read such a run like any other."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import failing_models
from tests.support.metrics_lines import CLOCK, lines
from tests.support.tiny import TINY
from trainer.checkpoint.store import get_checkpoint_path
from trainer.cli.main import main
from trainer.graph import trace
from trainer.graph.counting import TrainingCost, count_training_cost
from trainer.graph.model import GraphModel
from trainer.graph.reading import read_traced
from trainer.models import ARCHITECTURES
from trainer.scoring.compare_replay import compare_weights
from trainer.training import model_sources, replay
from trainer.training.checkpointing import write_graph_files

pytestmark = pytest.mark.processes

TRACED = tuple(flag for flag in TINY if flag != "--eager")
BUDGET = ("--budget", "6steps", "--checkpoint-every", "3steps", "--keep", "9")


@pytest.fixture(scope="module")
def flags(dataset_folder: Path) -> list[str]:
    return ["--dataset", str(dataset_folder), *TRACED, *BUDGET]


@pytest.fixture(scope="module")
def traced_run(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of graphs. For reading only."""
    out = tmp_path_factory.mktemp("traced") / "run"
    assert main(["train", *flags, "--out", str(out)]) == 0
    return out


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


@pytest.mark.slow
def test_resumed_run_reads_its_graphs(
    traced_run: Path, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_first_half(traced_run, tmp_path / "run")
    monkeypatch.setattr(trace, "trace_architecture", None)
    assert main(["train", *flags, "--out", str(tmp_path / "run")]) == 0
    weights = [get_checkpoint_path(run, 6) / "model.safetensors" for run in (traced_run, tmp_path / "run")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_resumed_run_with_equal_graphs_leaves_their_files(traced_run: Path, flags: list[str], tmp_path: Path) -> None:
    shutil.copytree(traced_run, tmp_path / "run")
    files = sorted((tmp_path / "run" / "graph").iterdir())
    before = [file.stat() for file in files]
    assert main(["train", *flags, "--out", str(tmp_path / "run")]) == 0
    after = [file.stat() for file in files]
    assert [(s.st_ino, s.st_mtime_ns) for s in after] == [(s.st_ino, s.st_mtime_ns) for s in before]


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


def test_graph_is_counted_at_every_micro_batch_that_a_run_may_have(
    traced_run: Path, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it resumes: a smaller card takes smaller ones."""
    counted = []

    def record_rows(model: GraphModel, row_counts: list[int], device: str) -> TrainingCost:
        counted.append(row_counts)
        return count_training_cost(model, row_counts, device)

    copy_first_half(traced_run, tmp_path / "run")
    monkeypatch.setattr(model_sources, "count_training_cost", record_rows)
    assert main(["train", *flags, "--out", str(tmp_path / "run")]) == 0
    assert counted == [[1, 2, 4]]
    assert lines(tmp_path / "run", "train")[-1]["flops"] == lines(traced_run, "train")[-1]["flops"]


def test_resumed_run_with_other_size_is_refused(
    traced_run: Path, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_first_half(traced_run, tmp_path / "run")
    assert main(["train", *flags, "--model.width", "64", "--out", str(tmp_path / "run")]) == 2
    assert "holds a run with another model" in capsys.readouterr().err


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


def test_sample_of_traced_run_prints_text(traced_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", str(traced_run), "--prompt", "The cat", "--max-tokens", "4"]) == 0
    assert capsys.readouterr().out.startswith("The cat")


def test_chat_with_traced_run_answers(
    traced_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("The king\n"))
    assert main(["chat", str(traced_run), "--max-tokens", "4"]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_score_of_traced_run_is_of_its_graphs(
    traced_run: Path, dataset_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["score", str(traced_run), "--dataset", str(dataset_folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["graph"] == read_hash(traced_run)


def test_traced_random_buffer_of_complex128_is_refused_before_training(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "failing", "tests.support.failing_models")
    monkeypatch.setattr(failing_models, "WAY", "random type")
    assert main(["train", *flags[:2], *TRACED[2:], *BUDGET, "--arch", "failing", "--out", str(tmp_path)]) == 3
    assert "the buffer table has the type complex128, which a checkpoint cannot hold" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("counting", "a graph is the same for all values"),
        ("building", "KeyError: 'width'"),
    ],
)
def test_untraceable_architecture_fails_with_advice(
    way: str,
    reason: str,
    flags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "failing", "tests.support.failing_models")
    monkeypatch.setattr(failing_models, "WAY", way)
    assert main(["train", *flags[:2], *TRACED[2:], *BUDGET, "--arch", "failing", "--out", str(tmp_path)]) == 3
    error = capsys.readouterr().err
    assert "failing cannot be traced: " in error
    assert reason in error
    assert "--eager" in error
    assert "Traceback" not in error
    assert json.loads((tmp_path / "failure.json").read_text())["cause"] == "model"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--arch", "rwkv5", "--model.width", "64", "--train.chunk", "16"), "train.chunk"),
        (("--train.activation_checkpointing", "true"), "train.activation_checkpointing"),
    ],
)
def test_unsupported_option_trains_the_module(
    options: tuple[str, ...], reason: str, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*flags[:2], *TRACED[:2], *TRACED[6:], *BUDGET, *options]
    assert main(["train", *flags, "--budget", "1steps", "--out", str(tmp_path)]) == 0
    assert f"training the Python module ({reason})" in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_train_the_graphs_of_one(traced_run: Path, flags: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainer.train", *flags, "--devices", "2", "--out", str(tmp_path)]
    subprocess.run(command, check=True)
    assert read_hash(tmp_path) == read_hash(traced_run)
    losses = [[row["loss"] for row in lines(run, "dev")] for run in (traced_run, tmp_path)]
    assert losses[0] == pytest.approx(losses[1], abs=0.01)  # Muon amplifies rounding
